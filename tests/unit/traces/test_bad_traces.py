"""Files that are no traces: one clear error with location and hint, before much is read."""

import csv
import gzip
import io
import json
import os
import re
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given, settings

from shadowprice.core.errors import InputError
from shadowprice.traces.locate import read_trace
from shadowprice.traces.records import ABSOLUTE_TIME_COLUMNS, MAX_VALUES
from shadowprice.traces.registry import ImportContext, formats
from shadowprice.traces.text import MAX_INVALID_LINES, CheckedTable, read_table
from tests.hostile.trace_files import TRACES
from tests.support.examples import example_count

GOOD = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 06:13:03,5.0,1,5.0,v\n"
ROW = "2017-10-09 06:13:03,5.0,1,5.0,v\n"


def fault(tmp_path: Path, content: bytes, form: str = "philly", options: str = "") -> str:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(f"{form}:{path}{options}")
    return str(caught.value).replace(str(path), "bad")


@pytest.mark.parametrize("form", [name for name in formats() if name != "pai"])  # a folder
def test_every_format_refuses_binary_content(tmp_path, form):
    assert "is empty" in fault(tmp_path, b"", form)
    assert "is empty" in fault(tmp_path, b"\n \n", form)
    assert "binary" in fault(tmp_path, os.urandom(1000) + b"\0", form)
    assert "UTF-16" in fault(tmp_path, GOOD.encode("utf-16"), form)
    assert "line 2: is not UTF-8" in fault(tmp_path, b"a,b\n" + "é\n".encode("latin-1") * 9, form)
    assert "line 1" in fault(tmp_path, b"lorem ipsum\n" * 9, form)
    assert "no end within 64 KiB" in fault(tmp_path, b"x" * 100_000, form)
    assert "carriage return" in fault(tmp_path, GOOD.replace("\n", "\r").encode(), form)


@pytest.mark.parametrize("form", ["philly", "pai", "swf"])
def test_a_missing_path_is_refused(tmp_path, form):
    with pytest.raises(InputError, match=r"no such file|not a directory"):
        read_trace(f"{form}:{tmp_path}/nothing")
    if form != "pai":
        with pytest.raises(InputError, match="is a directory"):
            read_trace(f"{form}:{tmp_path}")


def test_a_gigabyte_of_zeros_costs_neither_time_nor_memory(tmp_path):
    path = tmp_path / "bad"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="is binary"):
            read_trace(f"philly:{path}")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_junk_after_a_good_start_is_named_by_its_line(tmp_path):
    text = GOOD + "lorem ipsum dolor,sit amet\n" * 1000
    assert fault(tmp_path, text.encode()).startswith(
        "bad: line 3: has 2 fields, not 5; copy the file again if it was cut off\nbad: line 4"
    )
    late = GOOD.encode() + ROW.encode() * 5000 + b"\xff\xfe\xfa\n"
    assert "line 5003: is not UTF-8" in fault(tmp_path, late)
    assert "line 5003: is not UTF-8" in fault(tmp_path, gzip.compress(late))


def test_gzip_cut_short_or_damaged(tmp_path):
    whole = gzip.compress((GOOD + "".join(f"{ROW[:-2]}{i}\n" for i in range(20_000))).encode())
    assert "truncated gzip stream" in fault(tmp_path, whole[: len(whole) // 2])
    broken = bytearray(whole)
    broken[-8] ^= 0xFF  # the checksum of the content
    assert "corrupt gzip stream" in fault(tmp_path, bytes(broken))
    assert "corrupt gzip stream" in fault(tmp_path, b"\x1f\x8bnot gzip at all")
    for length in (2, 9, 12):  # cut before the first byte of its content
        message = "bad: line 1: truncated gzip stream; copy or download the file again"
        assert fault(tmp_path, whole[:length]) == message


def test_missing_columns_are_named(tmp_path):
    text = fault(tmp_path, b"timestamp,duration,cluster\n2017-10-09 06:13:03,1,v\n")
    assert "line 1: the header lacks num_gpus, gpu_time" in text


def test_every_wrong_value_is_listed_with_its_line(tmp_path):
    text = fault(
        tmp_path,
        (
            GOOD
            + "2017-13-09 06:13:03,5.0,1,5.0,v\n"
            + "2017-10-09 06:13:03,-5.0,1,5.0,v\n"
            + ROW
            + "2017-10-09 06:13:03,5.0,0,5.0,v\n"
        ).encode(),
    )
    assert text.splitlines() == [
        "bad: line 3: timestamp '2017-13-09 06:13:03' is not a time; write it as %Y-%m-%d %H:%M:%S",
        "bad: line 4: duration -5.0 is not above 0",
        "bad: line 6: num_gpus 0 is not above 0",
    ]


def test_wrong_types_are_listed_with_their_lines(tmp_path):
    text = fault(tmp_path, (GOOD + "2017-10-09 06:13:03,long,1,5.0,v\n").encode())
    assert text == "bad: line 3: duration 'long' is not a number; write a number"
    text = fault(tmp_path, (GOOD + "2017-10-09 06:13:03,1,1.5,5.0,v\n").encode())
    assert text == "bad: line 3: num_gpus '1.5' is not a whole number; write a whole number"
    text = fault(tmp_path, (GOOD + f"2017-10-09 06:13:03,1,{10**30},5.0,v\n").encode())
    assert text == f"bad: line 3: num_gpus '{10**30}' is out of range; write at most 1e+15"


@pytest.mark.parametrize("name", [name for name in TRACES if not name.endswith("-log")])
def test_nan_in_any_field_is_a_missing_number(tmp_path, name):
    blank = {"swf": " ", "gavel": "\t"}.get(name, ",")
    rows = [line.split(blank) for line in TRACES[name].splitlines()]
    form = "pai" if name.startswith("pai") else name
    for index in range(len(rows[-1])):
        changed = [*rows[:-1], [*rows[-1][:index], "nan", *rows[-1][index + 1 :]]]
        files = dict(TRACES) | {name: "\n".join(map(blank.join, changed)) + "\n"}
        path = tmp_path / str(index)
        if form == "pai":
            path.mkdir()
            for part in ("job", "task"):
                (path / f"pai_{part}_table.csv").write_text(files[f"pai_{part}"])
        else:
            path.write_text(files[name])
        try:
            jobs = read_trace(f"{form}:{path}").jobs
        except InputError:
            continue
        assert jobs["submit"].is_finite().all()
        assert not any(one.is_nan().any() for one in jobs.select(pl.selectors.float()))


def test_many_faults_are_cut_off_with_a_count(tmp_path):
    text = fault(tmp_path, (GOOD + "2017-10-09 06:13:03,-5.0,1,5.0,v\n" * 30).encode())
    assert len(text.splitlines()) == 21
    assert text.endswith("and 10 more rows are wrong")


def test_skip_invalid_leaves_wrong_rows_out_and_counts_them(tmp_path):
    path = tmp_path / "some.csv"
    path.write_text(
        GOOD
        + "2017-10-09 06:13:03,long,1,5.0,v\n"
        + "2017-10-09 06:13:03,1\n"
        + f"2017-10-09 06:13:03,1,{10**30},5.0,v\n"
        + "2017-10-09 06:13:03,-5.0,1,5.0,v\n"
        + "\n"
        + "2017-10-09 06:13:04,7.0,1,7.0,w\n"
    )
    trace = read_trace(f"philly:{path}?skip_invalid=yes")
    assert trace.jobs["duration"].to_list() == [5.0, 7.0]
    assert trace.jobs["job"].to_list() == ["v-2", "w-8"]
    assert dict(trace.dropped) == {
        "blank line": 1,
        "row that cannot be parsed": 3,
        "duration is not above 0": 1,
    }
    assert read_trace(f"philly:{path}", skip_invalid=True).jobs.equals(trace.jobs)


def test_the_philly_log_is_judged_by_its_head(tmp_path):
    assert "is not a JSON list of jobs" in fault(tmp_path, b"{}")
    assert "is not a JSON list of jobs" in fault(tmp_path, b"[1, 2]")
    assert "begins with no Philly job" in fault(tmp_path, b'[{"a": 1}]')
    assert "line 2: is not JSON" in fault(tmp_path, b'[\n{"jobid" oops: 1}, {"attempts": []}]')
    assert "contains no job" in fault(tmp_path, b"[]")
    cut = b'[{"jobid": "a", "attempts": []}, {"jobid"'
    assert "is not JSON" in fault(tmp_path, cut)


HEADS = {"philly": b'[{"jobid": "a", "attempts": []}', "sacct": b'{"jobs": [{}'}


@pytest.mark.parametrize("form", HEADS)
@pytest.mark.parametrize("blanks", [0, 70_000])  # in the head of the file, or after it
@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"[" * 50_000, "it is nested too deeply"), (b"9" * 5_000, "a number has too many digits")],
)
def test_json_that_python_cannot_hold_is_refused(tmp_path, form, blanks, value, reason):
    content = HEADS[form] + b"," + b" " * blanks + value
    assert f"is not JSON ({reason})" in fault(tmp_path, content, form)


@pytest.mark.parametrize("text", ["\\ud800", "\\u0000"])
def test_texts_of_json_that_cannot_be_stored_are_refused(tmp_path, text):
    ran = {"start_time": "2017-10-09 07:02:00", "end_time": "2017-10-09 07:12:00"}
    job = {
        "jobid": "TEXT",
        "vc": "v",
        "user": "u",
        "status": "Pass",
        "submitted_time": "2017-10-09 07:01:00",
        "attempts": [{**ran, "detail": [{"gpus": ["a"]}]}],
    }
    reason = "contains a null character" if text == "\\u0000" else "contains an unpaired surrogate"
    content = json.dumps([job]).replace("TEXT", text).encode()
    assert f"is not a job of the Philly log ({reason})" in fault(tmp_path, content)
    times = {"submission": 1704067200, "start": 1704067200, "end": 1704067300}
    job = {"job_id": 1, "user": "TEXT", "state": {"current": "COMPLETED"}, "time": times}
    content = json.dumps({"jobs": [job]}).replace("TEXT", text).encode()
    assert f"job 1: is not a job of sacct --json ({reason})" in fault(tmp_path, content, "sacct")


WRONG_IN_ONE_FIELD = {
    "2017-10-09 06:13:03,5.0,100000000,5.0,v": "gpus 100000000 exceeds the limit of 1,000,000 ",
    "9999-10-09 06:13:03,5.0,1,5.0,v": "timestamp '9999-10-09 06:13:03' is not of the years 1970 ",
    "0001-10-09 06:13:03,5.0,1,5.0,v": "timestamp '0001-10-09 06:13:03' is not of the years 1970 ",
    "2017-10-09 06:13:03,1e12,1,5.0,v": "duration 1000000000000.0 exceeds the limit of 5,000,",
    "2017-10-09 06:13:03,1_000,1,5.0,v": "duration '1_000' is not a number; write a number",
    "2017-10-09 06:13:03,\u0661\u0662,1,5.0,v": "duration '\u0661\u0662' is not a number; write",
    "2017-10-09 06:13:03,5.0,1_0,5.0,v": "num_gpus '1_0' is not a whole number; write a whole",
}


@pytest.mark.parametrize("row", WRONG_IN_ONE_FIELD)
def test_a_row_above_a_limit_is_reported_with_its_line_and_can_be_skipped(tmp_path, row):
    text = (GOOD + row + "\n" + ROW).encode()
    assert fault(tmp_path, text).startswith(f"bad: line 3: {WRONG_IN_ONE_FIELD[row]}")
    trace = read_trace(f"philly:{tmp_path}/bad", skip_invalid=True)
    assert trace.jobs["job"].to_list() == ["v-2", "v-4"]
    assert trace.jobs["submit"].to_list() == [0.0, 0.0]
    assert [count for _, count in trace.dropped] == [1]


def test_all_rows_above_a_limit_are_reported_together(tmp_path):
    rows = [*WRONG_IN_ONE_FIELD][:4]
    text = fault(tmp_path, (GOOD + "\n".join(rows)).encode())
    lines = [
        f"bad: line {index}: {WRONG_IN_ONE_FIELD[row]}" for index, row in enumerate(rows, start=3)
    ]
    for line, expected in zip(text.splitlines(), lines, strict=True):
        assert line.startswith(expected)


def test_a_blank_after_a_number_is_accepted(tmp_path):
    path = tmp_path / "blank.csv"
    path.write_text(GOOD + ROW.replace("5.0,1", "6.0 ,1"))
    assert read_trace(f"philly:{path}").jobs["duration"].to_list() == [5.0, 6.0]


TWICE = {
    "itp": ("b,2000,", "a,2000,", "line 3: job 'a'"),
    "swf": ("\n2 60", "\n1 60", "line 3: job 'job-1'"),
    "tiresias": ("\n1,8", "\n0,8", "line 3: job '0'"),
    "pai_job": ("j2,", "j1,", "line 2: job 'j1'"),
    "philly-log": ("log-1", "log-0", "[1]: job 'log-0'"),
}


@pytest.mark.parametrize("name", TWICE)
def test_names_must_be_unique_and_later_ones_can_be_left_out(tmp_path, name):
    old, new, place = TWICE[name]
    text = TRACES[name].replace(old, new)
    assert text != TRACES[name]
    path = tmp_path / "twice"
    if name == "pai_job":
        path.mkdir()
        (path / "pai_job_table.csv").write_text(text)
        (path / "pai_task_table.csv").write_text(TRACES["pai_task"])
    else:
        path.write_text(text)
    spec = f"{'pai' if name == 'pai_job' else name.removesuffix('-log')}:{path}"
    with pytest.raises(InputError) as caught:
        read_trace(spec)
    assert f"{place} is the name of an earlier row; job names must be" in str(caught.value)
    trace = read_trace(spec, skip_invalid=True)
    assert trace.jobs.height == 1
    assert dict(trace.dropped) == {"job is the name of an earlier row": 1}


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("swf", "\n2 60", "\n1e30 60", "text has a number out of range"),
        ("swf", "\n2 60", "\n2 1e14", "submit exceeds the limit of 5,000,000,000 seconds"),
        ("swf", "1 -1 -1 1 100", "1 -1 1e15 1 100", "memory exceeds the limit of"),
        ("swf", " 0 50 1 ", " 0 50 1e14 ", "gpus exceeds the limit of"),
        ("itp", "2900,64", "1e11,64", "deadline exceeds the limit of"),
        ("itp", "bert,2900,64", "bert,2900,64000000000000", "batch_size exceeds the limit of"),
        ("helios", "2020-04-01 01:01:00", "9020-04-01 01:01:00", "end_time is not of the years"),
        ("philly-log", "2017-10-07 02:01:00", "9017-10-07 02:01:00", "entry that is not a job"),
    ],
)
def test_impossible_values_are_skipped_row_by_row(tmp_path, name, old, new, reason):
    text = TRACES[name].replace(old, new, 1)
    assert text != TRACES[name]
    if name == "helios":
        text += TRACES[name].splitlines()[1].replace("1,u", "2,u", 1) + "\n"
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InputError, match=r"(line \d+|\[0\] 'log-0'): "):
        read_trace(f"{name.removesuffix('-log')}:{path}")
    trace = read_trace(f"{name.removesuffix('-log')}:{path}", skip_invalid=True)
    assert trace.jobs.height == 1
    assert [(found.startswith(reason), count) for found, count in trace.dropped] == [(True, 1)]


TABLES = sorted(set(TRACES) - {"philly-log", "gavel", "swf", "sacct", "pai_job", "pai_task"})
"""Traces with a header and commas."""


@pytest.mark.parametrize("name", TABLES)
def test_equivalent_spellings_of_a_table_give_the_same_trace(tmp_path, name):
    rows = [line.split(",") for line in TRACES[name].splitlines()]

    def read(text):
        (tmp_path / "t.csv").write_bytes(text.encode())
        return read_trace(f"{name}:{tmp_path / 't.csv'}").jobs

    plain = read(TRACES[name])
    for text in (
        "\n".join(", ".join(row) for row in rows),
        "\r\n".join(",".join(f'"{cell}"' for cell in row) for row in rows) + "\r\n",
        "\ufeff" + "\n".join(",".join(reversed(row)) for row in rows) + "\n\n",
        re.sub(r",(\d+)(?=,)", r",\1.0", TRACES[name]),
    ):
        assert read(text).equals(plain)
    with pytest.raises(InputError, match=r"line 1: the header names 'x' more than once"):
        read("\n".join(",".join((*row, "x", "x")) for row in rows))


CELLS = st.text(st.sampled_from('a",\n ;#'), max_size=6)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8), st.sampled_from(",;\t"))
@settings(max_examples=example_count(100), deadline=None)
def test_rows_beside_a_wrong_one_are_split_as_csv_defines_it(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]], separator: str
) -> None:
    path = tmp_path_factory.mktemp("rows") / "table"
    rows = [["x", *row] for row in cells]
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerows([["name", "of\ntwo lines", "note"], *rows, ["x", "y", "z", "surplus"]])
    path.write_text(text.getvalue())
    columns = dict.fromkeys(("name", "of two lines", "note"), pl.String())
    reading = ImportContext(skip_invalid=True)
    table = read_table(path, columns, reading, separator=separator)
    expected = [tuple(cell.strip() or None for cell in row) for row in rows]
    assert table.frame.select(*columns).rows() == expected
    lines = [3 + sum("".join(row).count("\n") + 1 for row in rows[:n]) for n in range(len(rows))]
    assert table.frame["line"].to_list() == lines
    assert {note.reason: note.count for note in reading.tally.notes()} == {
        "row that cannot be parsed": 1
    }


def test_a_file_with_too_many_faults_is_closed_at_once(tmp_path):
    path = tmp_path / "table"
    path.write_text("a,b\n" + "1,2,3\n" * (2 * MAX_INVALID_LINES))
    with pytest.raises(InputError) as caught:
        read_table(path, {"a": pl.Int64(), "b": pl.Int64()}, ImportContext())
    files = {Path(os.path.realpath(file)) for file in Path("/proc/self/fd").iterdir()}
    assert path not in files, caught  # which keeps the frames


def test_a_row_with_several_problems_is_refused_for_its_first_column():
    amounts = [name for name in MAX_VALUES if name not in ABSOLUTE_TIME_COLUMNS]
    for index, first in enumerate(amounts):
        values = {"job": "a", "submit": 0.0} | dict.fromkeys(amounts[index:], 10**18)
        table = CheckedTable(Path("log"), pl.DataFrame([{"line": 1} | values]), ImportContext())
        with pytest.raises(InputError, match=f"line 1: {first} "):
            table.jobs(**{name: name for name in values})
