"""Logs as tables (``csv``) and from Slurm (``sacct``): forms of values, mappings and faults."""

from __future__ import annotations

import csv
import io
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.policies.choice import PolicyChoice
from shadowprice.simulator.as_it_was import as_it_was
from shadowprice.simulator.scenario import run_policy
from shadowprice.simulator.source import ScenarioSource
from shadowprice.traces.job_log import CLOCK_SKEW_SECONDS, RUNNING, SLICES_OF_GPUS
from shadowprice.traces.locate import read_trace
from shadowprice.traces.log_values import (
    STANDS_FOR_MISSING,
    _in_zone,
    choose_readings,
    parse_gpus,
    parse_seconds,
    parse_state,
    parse_tres,
    read_times,
)
from shadowprice.traces.records import Trace
from tests.hostile.documents import nasty
from tests.hostile.trace_files import TRACES
from tests.support.examples import example_count

MOMENT = datetime(2024, 3, 25, 17, 6, 7)


def read(tmp_path: Path, text: str, options: str = "", form: str = "csv") -> Trace:
    path = tmp_path / "log"
    path.write_text(text)
    return read_trace(f"{form}:{path}{options}")


def notes(trace: Trace) -> dict[str, tuple[str, int]]:
    return {note.reason: (note.action, note.count) for note in trace.notes}


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%d %H:%M:%S",
        "%Y-%m-%dT%H:%M:%S",
        "%Y-%m-%dT%H:%M:%S.000Z",
        "%Y-%m-%d %H:%M:%S+00:00",
        "%Y/%m/%d %H:%M:%S",
        "%m/%d/%Y %I:%M:%S %p",
        "%d.%m.%Y %H:%M:%S",
        "%d/%m/%y %H:%M:%S",
        "%d-%b-%Y %H:%M:%S",
        "%b %d %Y %H:%M:%S",
        "%a %b %d %H:%M:%S %Y",
        "%d/%b/%Y:%H:%M:%S",
        "%Y%m%dT%H%M%SZ",
        "%Y-%m-%d %H:%M:%S+00",
        "%Y-%m-%d %H:%M:%S.000000+00",
        "%Y-%m-%d %H:%M:%S,000",
        "%a %b %d %H:%M:%S UTC %Y",
    ],
)
def test_times_in_every_usual_form_are_read(form: str) -> None:
    texts = pl.Series([(MOMENT + timedelta(days=day)).strftime(form) for day in range(3)])
    times = read_times(texts, "UTC", "", "here")
    expected = MOMENT.replace(tzinfo=ZoneInfo("UTC")).timestamp()
    assert times.absolute
    assert times.seconds.to_list() == [expected + 86400 * day for day in range(3)]


@pytest.mark.parametrize(
    ("header", "options"), [("Due date", ""), ("Wanted", "?map=deadline=Wanted")]
)
def test_deadlines_are_read_from_their_column(tmp_path: Path, header: str, options: str) -> None:
    rows = "2024-03-05 10:00,60,1,2024-03-05 11:30\n2024-03-05 10:10,60,1,\n"
    trace = read(tmp_path, f"submit,duration,gpus,{header}\n{rows}", options)
    assert trace.jobs["deadline"].to_list() == [5400.0, None]
    if not options:
        without = read(tmp_path, f"submit,duration,gpus,{header}\n{rows}", "?map=deadline=")
        assert without.jobs["deadline"].null_count() == 2


@pytest.mark.parametrize(
    ("deadline", "message", "reason"),
    [
        ("2024-03-05 09:00", "is before the submission", "line 2: it is before the submission"),
        ("soon", "is not a time", "line 2: 'soon' is not a time"),
        ("3600", "counts from another beginning; write times", "counts from another beginning"),
    ],
)
def test_a_wrong_deadline_is_refused_if_mapped_and_else_not_used(
    tmp_path: Path, deadline: str, message: str, reason: str
) -> None:
    text = f"submit,duration,gpus,deadline\n2024-03-05 10:00,60,1,{deadline}\n"
    with pytest.raises(InputError, match=message):
        read(tmp_path, text, "?map=deadline=deadline")
    trace = read(tmp_path, text)
    assert trace.jobs["deadline"].to_list() == [None]
    note = f"deadline: column 'deadline' isn't used: {reason}"
    assert notes(trace)[note] == ("ignored", 1)


@pytest.mark.parametrize("options", ["", "?map=deadline=deadline"])
def test_one_wrong_deadline_does_not_cost_the_others(tmp_path: Path, options: str) -> None:
    def log(first: str) -> str:
        rows = [f"2024-03-05 10:{n:02},60,1,2024-03-05 11:{n:02}\n" for n in range(1, 20)]
        return "".join(
            ["submit,duration,gpus,deadline\n", f"2024-03-05 10:00,60,1,{first}\n", *rows]
        )

    with pytest.raises(InputError, match="line 2: deadline '2024-03-05 09:00' is before the sub"):
        read(tmp_path, log("2024-03-05 09:00"), options)
    skipping = f"{options}&skip_invalid=yes" if options else "?skip_invalid=yes"
    trace = read(tmp_path, log("2024-03-05 09:00"), skipping)
    assert trace.jobs["deadline"].to_list() == [3600.0 + 60 * n for n in range(19)]
    for missing in ("0", ""):
        trace = read(tmp_path, log(missing), options)
        assert trace.jobs["deadline"].to_list() == [None, *(3660.0 + 60 * n for n in range(19))]


@pytest.mark.parametrize(
    ("meaning", "column", "text", "kind"),
    [
        ("wait", "Waiting", "yes", "a duration"),
        ("time_limit", "Limit", "long", "a duration"),
        ("nodes", "nodes", "n1", "a number"),
        ("cpus", "CPUs", "many", "a number"),
        ("memory", "Memory", "lots", "an amount of memory"),
        ("status", "Outcome", "good enough", "a known state"),
        ("start", "Started", "yes", "a time"),
        ("end", "Completed", "true", "a time"),
    ],
)
def test_a_guessed_column_that_does_not_fit_is_not_used(
    tmp_path: Path, meaning: str, column: str, text: str, kind: str
) -> None:
    log = f"id,submit,duration,gpus_per_node,{column}\n1,0,60,1,\n2,5,60,1,{text}\n"
    trace = read(tmp_path, log)
    assert len(trace.jobs) == 2
    result = notes(trace)
    reason = f"{meaning}: column '{column}' isn't used: line 3: '{text}' is not {kind}"
    assert result[reason] == ("ignored", 1)
    assert f"{meaning}: column '{column}'" not in result
    if meaning not in {"status", "time_limit"}:  # unknown states and limits are counted
        with pytest.raises(InputError, match=f"line 3: {column} '{text}' is(n't| not)"):
            read(tmp_path, log, f"?map={meaning}={column}")


def test_a_negative_wait_is_none(tmp_path: Path) -> None:
    log = "submit,wait,duration,gpus\n0,-61,60,1\n5,4,60,1\n"
    trace = read(tmp_path, log)
    assert trace.jobs["queue"].to_list() == [None, None]
    assert "wait: column 'wait' isn't used: line 2: '-61' is not a duration" in notes(trace)
    with pytest.raises(InputError, match="line 2: wait '-61' is not a duration"):
        read(tmp_path, log, "?map=wait=wait")


@pytest.mark.parametrize("options", ["", "?map=wait=wait"])
def test_clocks_that_differ_and_unlimited_waits_do_not_cost_the_others(
    tmp_path: Path, options: str
) -> None:
    log = "submit,wait,duration,gpus\n0,-1,60,1\n5,4,60,1\n9,UNLIMITED,60,1\n"
    trace = read(tmp_path, log, options)
    assert trace.jobs["queue"].to_list() == [0.0, 4.0, None]
    result = notes(trace)
    assert result["wait: column 'wait'"] == ("read", 3)
    assert result["started up to a minute before its submission: clocks differ"] == ("repaired", 1)
    assert result["unlimited wait: it isn't known"] == ("kept", 1)


@pytest.mark.parametrize("end", ["2024-01-02 03:00:50", "2024-01-02 09:00:00"])
def test_rows_that_joined_logs_both_have_are_one_job(tmp_path: Path, end: str) -> None:
    row = f"1,2024-01-02 03:00:00,2024-01-02 03:00:00,{end},1"
    other = row.replace("1,", "2,", 1)
    trace = read(tmp_path, f"{HEADER}\n{row}\n{other}\n{HEADER}\n{row}\n")
    assert trace.jobs.select("job", "lost").rows() == [("1", None), ("2", None)]
    assert dict(trace.dropped) == {
        "header again, of joined files": 1,
        "same row as an earlier one": 1,
    }
    names = "name,submit,duration,gpus\n" + "train,0,60,1\n" * 2  # two equal jobs
    assert read(tmp_path, names).jobs["job"].to_list() == ["job-2", "job-3"]


def test_the_best_column_that_fits_is_guessed(tmp_path: Path) -> None:
    log = "id,submit,created,duration,gpus,num_gpus\n1,web,0,60,half,2\n2,cli,5,60,half,4\n"
    trace = read(tmp_path, log)
    assert trace.jobs.select("submit", "gpus").rows() == [(0.0, 2.0), (5.0, 4.0)]
    only = log.replace(",num_gpus", ",x").replace("created", "y")
    with pytest.raises(InputError) as caught:  # jobs need these columns
        read(tmp_path, only)
    assert [fault.message for fault in caught.value.faults] == [
        *("submit 'web' is not a time", "gpus 'half' is not a number of GPUs"),
        *("submit 'cli' is not a time", "gpus 'half' is not a number of GPUs"),
    ]


def test_columns_that_others_make_superfluous_are_not_listed_as_read(tmp_path: Path) -> None:
    log = "submit,start,end,wait,gpus,gpus_per_node,nodes\n0,60,120,9,1,1,1\n"
    result = notes(read(tmp_path, log))
    assert {reason for reason, (action, _) in result.items() if action == "read"} == {
        *("submit: column 'submit'", "start: column 'start'", "end: column 'end'"),
        "gpus: column 'gpus'",
    }
    assert {reason for reason, (action, _) in result.items() if action == "ignored"} == {
        "wait: column 'wait' isn't used: starts are known",
        "gpus_per_node: column 'gpus_per_node' isn't used: the GPUs in all are known",
        "nodes: column 'nodes' isn't used: GPUs aren't counted by node",
    }


@pytest.mark.parametrize("name", ["*", "^.*$", "^s.*t$"])
def test_headers_that_are_patterns_are_names(tmp_path: Path, name: str) -> None:
    log = f"{name},submit,duration,gpus\n2,0,60,1\n4,5,60,1\n"
    assert read(tmp_path, log).jobs["gpus"].to_list() == [1.0, 1.0]
    assert read(tmp_path, log, f"?map=gpus={name}").jobs["gpus"].to_list() == [2.0, 4.0]
    sacct = read(tmp_path, f"{SACCT_HEAD}|{name}\n{sacct_row('1')}|x\n", form="sacct")
    assert sacct.jobs["job"].to_list() == ["1"]


@pytest.mark.parametrize("memory", ["99999999999P", "9" * 400, "8192P"])
def test_memory_above_all_integers_is_a_fault(tmp_path: Path, memory: str) -> None:
    log = f"submit,duration,gpus,memory\n0,60,1,{memory}\n"
    assert read(tmp_path, log).jobs["memory"].to_list() == [None]
    with pytest.raises(InputError, match="is not an amount of memory"):
        read(tmp_path, log, "?map=memory=memory")


def test_all_faults_of_a_log_are_listed_with_their_lines(tmp_path: Path) -> None:
    rows = [
        "a,2024-01-02 03:04:05,60,2,low,",
        "b,2024-01-02 03:04:05,60",  # too short
        'c,yesterday,an hour,two,,"of two\nlines"',
        "d,2024-01-02 03:04:05,60,2,,,surplus",
        "e,2024-01-02 03:04:05,-5,2,,",
        '"f,2024-01-02 03:04:05,60,2,,',
    ]
    text = "job,submit,duration,gpus,priority,note\n" + "\n".join(rows) + "\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    results = [
        f"{fault.location.rpartition(': ')[2]}: {fault.message}" for fault in caught.value.faults
    ]
    assert results == [
        "line 3: has 3 fields, not 6",
        "line 4: submit 'yesterday' is not a time",
        "line 4: duration 'an hour' is not a duration",
        "line 4: gpus 'two' is not a number of GPUs",
        "line 6: has 7 fields, not 6",
        "line 7: duration '-5' is negative",
        "line 8: a quote isn't closed",
    ]
    assert any("--skip-invalid" in note for note in caught.value.__notes__)
    trace = read(tmp_path, text, "?skip_invalid=yes")
    assert trace.jobs["job"].to_list() == ["a"]
    assert dict(trace.dropped) == {
        "row that cannot be parsed": 3,
        "submit is not a time": 1,
        "duration is negative": 1,
    }


def test_faults_of_a_column_do_not_hide_those_of_rows(tmp_path: Path) -> None:
    log = "submit,end,duration,gpus\n03/04/2024 10:00,,60,two\n05/06/2024\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, log)
    results = [(fault.location.rpartition(": ")[2], fault.message) for fault in caught.value.faults]
    assert results == [
        ("column 'submit'", "days and months can't be distinguished"),
        ("line 2", "gpus 'two' is not a number of GPUs"),
        ("line 3", "has 1 field, not 4"),
    ]


def test_the_number_of_rows_whose_faults_are_not_listed_is_given(tmp_path: Path) -> None:
    rows = "0,60\n" * 15 + "0,60,two\n" * 15 + "0,60,1\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, f"submit,duration,gpus\n{rows}")
    faults = caught.value.faults
    assert [fault.location.rpartition(" ")[2] for fault in faults[:20]] == [
        str(line) for line in range(2, 22)
    ]
    assert faults[20].message == "and 10 more rows are wrong"
    assert len(faults) == 21
    with pytest.raises(InputError) as caught:
        read(tmp_path, "submit,duration,gpus\n0,60,1\n" + "0,60\n" * 1200)
    assert caught.value.faults[-1].message == "and at least 980 more rows are wrong"


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_numbers_since_1970_are_read_by_their_size(scale: int) -> None:
    times = read_times(pl.Series([str(1_711_386_367 * scale)]), "Europe/Berlin", "", "here")
    assert times.seconds.to_list() == [pytest.approx(1_711_386_367.0)]


def test_local_times_are_those_of_the_zone_and_offsets_win() -> None:
    texts = pl.Series(["2024-07-01 12:00:00", "2024-07-01 12:00:00-05:00", None])
    times = read_times(texts, "Europe/Berlin", "", "here")
    zone = ZoneInfo("Europe/Berlin")
    berlin = datetime(2024, 7, 1, 12, tzinfo=zone).timestamp()
    assert times.seconds.to_list() == [berlin, berlin + 7 * 3600, None]


def test_a_job_over_the_repeated_hour_of_a_local_clock_keeps_its_order(tmp_path: Path) -> None:
    # 2024-10-27: 02:30 came twice in Berlin.
    log = "submit,start,end,gpus\n2024-10-27 02:40:00,2024-10-27 02:50:00,2024-10-27 02:10:00,1\n"
    trace = read(tmp_path, log, "?timezone=Europe/Berlin")
    assert trace.jobs.select("queue", "duration").row(0) == (600.0, 1200.0)
    with pytest.raises(InputError, match="is before the start; if the log has local times"):
        read(tmp_path, log)


def test_a_job_of_slurm_over_the_repeated_hour_keeps_its_order(tmp_path: Path) -> None:
    head = "JobID|User|State|Submit|Eligible|Start|End|Elapsed|AllocTRES|ReqTRES"
    tres = "billing=1,cpu=1,gres/gpu=1,node=1|billing=1,cpu=1,gres/gpu=1,node=1"
    day = "2024-10-27T"  # 02:00 to 03:00 came twice in Berlin
    moments = [  # local submission, start and end; what zone data makes of the wait and run time
        ("02:40:00", "02:50:00", "02:10:00", 600.0, 1200.0),
        ("02:40:00", "02:10:00", "02:50:00", 1800.0, 2400.0),
        ("01:50:00", "02:05:00", "03:05:00", 900.0, 7200.0),
    ]
    rows = [
        f"{index}|ann|COMPLETED|{day}{submit}|{day}{submit}|{day}{start}|{day}{end}"
        f"|{timedelta(seconds=ran)}|{tres}"
        for index, (submit, start, end, _, ran) in enumerate(moments, start=1)
    ]
    text = "\n".join([head, *rows]) + "\n"
    trace = read(tmp_path, text, "?timezone=Europe/Berlin", form="sacct")
    found = {row["job"]: (row["queue"], row["duration"]) for row in trace.jobs.to_dicts()}
    assert found == {
        str(index): (wait, ran) for index, (*_, wait, ran) in enumerate(moments, start=1)
    }


def test_ambiguous_days_and_months_need_an_option(tmp_path: Path) -> None:
    log = "submit,duration,gpus\n03/04/2024 10:00,60,1\n05/06/2024 10:00,60,1\n"
    with pytest.raises(InputError, match="can't be distinguished; add dates=dmy or dates=mdy"):
        read(tmp_path, log)
    assert str(read(tmp_path, log, "?dates=dmy").start) == "2024-04-03 10:00:00"
    assert str(read(tmp_path, log, "?dates=mdy").start) == "2024-03-04 10:00:00"
    shown = log + "25/04/2024 10:00,60,1\n"
    assert str(read(tmp_path, shown).start) == "2024-04-03 10:00:00"
    for end, start in (("25/04/2024", "2024-04-03"), ("04/25/2024", "2024-03-04")):
        other = f"submit,start,end,gpus\n03/04/2024 10:00,03/04/2024 10:00,{end} 10:00,1\n"
        assert str(read(tmp_path, other).start) == f"{start} 10:00:00"
    both = (
        "submit,start,duration,gpus,end,created\n03/04/2024,03/04/2024,60,1,25/04/2024,04/25/2024\n"
    )
    with pytest.raises(InputError, match="can't be distinguished"):
        read(tmp_path, both)


@pytest.mark.parametrize("version", ["3.13.10", "13.3.10"])
def test_only_times_show_whether_days_or_months_come_first(tmp_path: Path, version: str) -> None:
    head = "submit,duration,gpus,python,Created\n"
    row = f"03/04/2024 10:00,60,1,{version},"
    with pytest.raises(InputError, match="can't be distinguished"):
        read(tmp_path, f"{head}{row}\n")
    trace = read(tmp_path, f"{head}{row}25/04/2024 10:00\n")
    assert str(trace.start) == "2024-04-03 10:00:00"
    note = "dates of column 'submit': days come first, as column 'Created' shows"
    assert notes(trace)[note] == ("read", 1)


@pytest.mark.parametrize(
    ("texts", "hours"),
    [
        (("2024-03-01 10:00 CET", "2024-07-01 10:00:00 CEST"), (9, 8)),
        (("2024-03-01 10:00 EET", "2024-07-01 10:00 EEST"), (8, 7)),
        (("2024-03-01T10:00:00 WET", "2024-07-01 10:00 WEST"), (10, 9)),
        (("2024-03-01 10:00 EST", "2024-07-01 10:00 est"), (15, 15)),
        (("2024-03-01 10:00 MST", "2024-07-01 10:00 HST"), (17, 20)),
        (("2024-03-01 10:00 UTC", "2024-07-01 10:00Z"), (10, 10)),
        (("2024-03-01 10:00:00 GMT", "2024-07-01 10:00 +0200"), (10, 8)),
        (("Fri Mar  1 10:00:00 CET 2024", "Mon Jul  1 10:00:00 CEST 2024"), (9, 8)),
    ],
)
def test_abbreviations_of_time_zones_with_one_meaning_are_read(
    texts: tuple[str, str], hours: tuple[int, int]
) -> None:
    # In another zone than that of times without one.
    times = read_times(pl.Series(texts), "Asia/Tokyo", "", "here")
    days = (datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 7, 1, tzinfo=UTC))
    expected = [day.timestamp() + 3600 * hour for day, hour in zip(days, hours, strict=True)]
    assert times.seconds.to_list() == times.later.to_list() == expected
    assert times.problem.null_count() == 2


@pytest.mark.parametrize(
    "zone",
    [
        *(" PDT", " CST", " IST", " BST", " Europe/Atlantis", " XYZ", "+99:99", " +0160"),
    ],
)
def test_other_time_zones_are_faults_with_their_line(tmp_path: Path, zone: str) -> None:
    log = (
        f"job,submit,duration,gpus\na,2024-03-01 09:00:00,60,1\nb,2024-03-01 10:00:00{zone},60,1\n"
    )
    with pytest.raises(InputError) as caught:
        read(tmp_path, log)
    [fault] = caught.value.faults
    assert fault.location == f"{tmp_path / 'log'}: line 3"
    message = f"submit '2024-03-01 10:00:00{zone}' has an unknown or ambiguous time zone"
    assert fault.message == message
    assert fault.hint.startswith("write its offset, such as -07:00")
    with pytest.raises(InputError, match=r"line 2: Submit .* has an unknown or ambiguous"):
        read_sacct(tmp_path, sacct_row("1", Submit=f"2024-03-05T06:00:00{zone}"))


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2024-07-01 10:00 EDT", "US/Eastern", "2024-07-01T14:00:00"),
        ("2024-01-01 10:00 EST", "US/Eastern", "2024-01-01T15:00:00"),
        ("2024-07-01 10:00:00 PDT", "America/Los_Angeles", "2024-07-01T17:00:00"),
        ("2024-01-01 10:00 PST", "America/Los_Angeles", "2024-01-01T18:00:00"),
        ("2024-07-01 10:00 MDT", "America/Denver", "2024-07-01T16:00:00"),
        ("2024-07-01 10:00 BST", "Europe/London", "2024-07-01T09:00:00"),
        ("2024-07-01 10:00 JST", "Asia/Tokyo", "2024-07-01T01:00:00"),
        ("2024-07-01 10:00 AEST", "Australia/Sydney", "2024-07-01T00:00:00"),
        ("2024-11-03 01:30 EDT", "US/Eastern", "2024-11-03T05:30:00"),
        ("2024-11-03 01:30 EST", "US/Eastern", "2024-11-03T06:30:00"),
        ("2024-10-27 02:30 CEST", "UTC", "2024-10-27T00:30:00"),
        ("2024-10-27 02:30 CET", "UTC", "2024-10-27T01:30:00"),
        ("2024-07-05 06:00:00 Europe/Berlin", "UTC", "2024-07-05T04:00:00"),
        ("2024-01-05 06:00 America/Argentina/Buenos_Aires", "UTC", "2024-01-05T09:00:00"),
        ("2024-01-05 06:00:00 Etc/GMT+5", "UTC", "2024-01-05T11:00:00"),
        ("2024-01-05 06:00:00 UTC+1", "Asia/Tokyo", "2024-01-05T05:00:00"),
        ("2024-01-05 06:00:00 GMT+02:00", "Asia/Tokyo", "2024-01-05T04:00:00"),
        ("Tue Mar 05 2024 06:00:00 GMT+0100 (CET)", "Asia/Tokyo", "2024-03-05T05:00:00"),
        ("2024-03-05 06:00:00.123456789 +0000 UTC", "Asia/Tokyo", "2024-03-05T06:00:00.123456"),
        ("2024-07-05T06:00:00+02:00[Europe/Berlin]", "UTC", "2024-07-05T04:00:00"),
        ("14.03.2024, 17:06:07", "UTC", "2024-03-14T17:06:07"),
        ("25-03-2024", "UTC", "2024-03-25T00:00:00"),
        ("1710435967,5", "UTC", "2024-03-14T17:06:07.5"),
        ("1,7096184E+12", "UTC", "2024-03-05T06:00:00"),
        ("2024-02-29T24:00:00", "UTC", "2024-03-01T00:00:00"),
        ("2024-03-05 24:00 CET", "UTC", "2024-03-05T23:00:00"),
        ("3/14/2024 5:06 a.m.", "UTC", "2024-03-14T05:06:00"),
        ("14/03/2024 5:06 p. m.", "UTC", "2024-03-14T17:06:00"),
        ("3/14/2024 5:06:07 P.M. UTC", "Asia/Tokyo", "2024-03-14T17:06:07"),
        ("20240314170607", "UTC", "2024-03-14T17:06:07"),
        ("20240314T1706", "UTC", "2024-03-14T17:06:00"),
        ("20240314T1706+0100", "UTC", "2024-03-14T16:06:00"),
    ],
)
def test_times_of_other_programs_are_read(text: str, zone: str, expected: str) -> None:
    times = read_times(pl.Series([text]), zone, "", "here")
    moment = datetime.fromisoformat(expected).replace(tzinfo=UTC).timestamp()
    assert times.seconds.to_list() == times.later.to_list() == [moment]


def test_many_texts_that_are_no_zones_cost_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(*arguments: Any) -> Any:
        calls.append(arguments)
        return _in_zone(*arguments)

    monkeypatch.setattr("shadowprice.traces.log_values._in_zone", count)
    costs = []
    for number in (1, 100):
        letters = [chr(ord("a") + digit) for digit in range(10)]
        texts = [f"2024-03-14 x{letters[n // 10]}{letters[n % 10]}" for n in range(number)]
        times = read_times(pl.Series([*texts, "2024-03-14 10:00 CET"]), "UTC", "", "here")
        assert times.problem.to_list() == [*["unclear"] * number, None]
        costs.append(len(calls))
        calls.clear()
    assert costs[0] == costs[1] > 0


def test_the_hour_that_a_named_zone_showed_twice_has_two_readings() -> None:
    times = read_times(pl.Series(["2024-10-27 02:30 Europe/Berlin"]), "UTC", "", "here")
    assert times.later[0] - times.seconds[0] == 3600.0


@pytest.mark.parametrize("time", ["2024-07-01 10:00 CET", "2024-03-01 10:00 CEST"])
def test_an_abbreviation_that_is_not_in_force_is_named(tmp_path: Path, time: str) -> None:
    with pytest.raises(InputError, match="has a time zone that isn't in force at that time; write"):
        read(tmp_path, f"submit,duration,gpus\n{time},60,1\n")


@pytest.mark.parametrize("mark", [".", ","])
def test_serial_dates_of_spreadsheets_are_refused(tmp_path: Path, mark: str) -> None:
    row = f"45356{mark}25;45356{mark}2569;45356{mark}2986;2"
    message = "column 'submit', 'start', 'end': looks like days since 1900, .*; format the cells"
    with pytest.raises(InputError, match=message):
        read(tmp_path, f"submit;start;end;gpus\n{row}\n")
    trace = read(tmp_path, f"submit_s;start_s;end_s;gpus\n{row}\n")
    assert trace.jobs["duration"].to_list() == [pytest.approx(0.0417)]


@pytest.mark.parametrize("times", ["0.5,30000.5,30001.5", "30000,30001,30002"])
def test_seconds_since_a_beginning_are_no_serial_dates(tmp_path: Path, times: str) -> None:
    assert read(tmp_path, f"submit,start,end,gpus\n{times},2\n").jobs["duration"].to_list() == [1]


HUGE = ("1e30", "9" * 30, "9" * 5000, "1e400")


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        *(("NNodes", text, "is not a number") for text in (*HUGE, "-3", "many")),
        *(("NCPUS", text, "is not a number") for text in (*HUGE, "-3")),
        *(("ReqMem", text, "is not an amount of memory") for text in ("9" * 30, "-4G", "much")),
        ("ReqMem", "9" * 12 + "Gn", "is not an amount of memory"),
        *(("Timelimit", text, "is not a duration") for text in ("soon", "-1:00:00")),
        *(("ElapsedRaw", text, "is not a duration") for text in ("soon", "1:2:3:4")),
        *(
            (column, f"{digits}:00:00", "exceeds the limit of 5,000,000,000 seconds")
            for column in ("Elapsed", "Timelimit")
            for digits in ("9" * 11, "9" * 400, "9" * 5000, "9" * 5000 + "-00")
        ),
        ("ElapsedRaw", "1e30", "exceeds the limit of 5,000,000,000 seconds"),
        *(
            (column, text, "is not of the years 1970 to 2128")
            for column in ("Submit", "Start", "End")
            for text in (*HUGE, "-5", "-1e18", "9998-12-31T00:00:00", "1930-01-01T00:00:00")
        ),
        ("Submit", "9999-12-31T00:00:00", "is not of the years 1970 to 2128"),
    ],
)
def test_numbers_of_sacct_beyond_all_limits_are_faults_with_their_line(
    tmp_path: Path, column: str, text: str, message: str
) -> None:
    names = [*SACCT_HEAD.split("|"), "NNodes", "NCPUS", "ReqMem", "ElapsedRaw"]
    fine = dict(zip(names, [*sacct_row("1").split("|"), "1", "8", "64Gn", ""], strict=True))
    wrong = fine | {"JobID": "2", column: text}
    lines = ["|".join(row) for row in (names, fine.values(), wrong.values())]
    with pytest.raises(InputError) as caught:
        read(tmp_path, "\n".join(lines) + "\n", form="sacct")
    assert {fault.location for fault in caught.value.faults} == {f"{tmp_path / 'log'}: line 3"}
    assert any(message in fault.message for fault in caught.value.faults)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *(("submit", text) for text in (*HUGE, "-5", "-1e18", "inf", "1930-01-01 00:00:00")),
        *(("duration", f"{days}-10") for days in ("9" * 11, "9" * 5000)),
        *(("duration", f"{hours}:00:00") for hours in ("9" * 11, "9" * 400, "9" * 5000)),
        *(("gpus", text) for text in (*HUGE, "-1", "mme=4G", "cpuu=4,gpus=2")),
    ],
)
def test_numbers_of_a_log_beyond_all_limits_are_faults_with_their_line(
    tmp_path: Path, column: str, text: str
) -> None:
    fine = {"job": "a", "submit": "2024-03-01 09:00:00", "duration": "60", "gpus": "1"}
    lines = [
        ",".join(row) for row in (fine, fine.values(), (fine | {column: f'"{text}"'}).values())
    ]
    with pytest.raises(InputError) as caught:
        read(tmp_path, "\n".join(lines).replace("\na,", "\nb,", 1) + "\n")
    assert {fault.location for fault in caught.value.faults} == {f"{tmp_path / 'log'}: line 3"}


@pytest.mark.parametrize("column", ["duration", "wait", "time_limit"])
def test_impossible_durations_of_a_log_are_shown_as_written(tmp_path: Path, column: str) -> None:
    row = {"submit": "0", "duration": "60", "gpus": "1"}
    row[column] = f"{'9' * 400}:00:00"
    lines = [",".join(row), ",".join(row.values())]
    message = rf"line 2: {column} '9999.* exceeds the limit of 5,000,000,000 seconds"
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, "\n".join(lines) + "\n")
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize("column", ["Elapsed", "Timelimit"])
def test_impossible_durations_of_slurm_are_shown_as_written(tmp_path: Path, column: str) -> None:
    message = rf"line 3: {column} '9999.* exceeds the limit of 5,000,000,000 seconds"
    with pytest.raises(InputError, match=message) as caught:
        read_sacct(tmp_path, sacct_row("1"), sacct_row("2", **{column: "9" * 400 + ":00:00"}))
    assert len(caught.value.faults) == 1


def test_an_array_of_slurm_with_huge_numbers_is_counted(tmp_path: Path) -> None:
    rows = [sacct_row(f"1_[0-{'9' * digits}%2]", State="PENDING") for digits in (20, 5000)]
    trace = read_sacct(tmp_path, sacct_row("1"), *rows)
    assert notes(trace) == {"element of an array that never started": ("dropped", 2)}


@settings(max_examples=example_count(100))
@given(st.randoms(use_true_random=False), st.sampled_from(["csv", "sacct"]), st.booleans())
def test_a_damaged_log_gives_jobs_or_faults_with_locations(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random, form: str, skip: bool
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    separator = "|" if form == "sacct" else ","
    rows = [line.split(separator) for line in TRACES[form].splitlines()]
    for _ in range(rng.randint(1, 4)):
        row = rng.choice(rows)
        index = rng.randrange(len(row))
        change = rng.random()
        if change < 0.5:
            row[index] = rng.choice(ODD_VALUES)
        elif change < 0.7:
            row[index] = str(nasty(rng))
        elif change < 0.9:  # change some of the value
            at = rng.randint(0, len(row[index]))
            row[index] = row[index][:at] + rng.choice(ODD_PARTS) + row[index][at + 1 :]
        else:
            del row[index]
        if not row:
            row.append("")
    text = "\n".join(separator.join(row) for row in rows) + "\n"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        trace = read_trace(f"{form}:{path}" + ("?skip_invalid=yes" if skip else ""))
    except InputError as error:
        for fault in error.faults:
            assert fault.location.startswith(str(path)), str(fault)
        return
    assert trace.jobs.height
    for name in ("submit", "duration", "gpus", "cpus", "queue", "memory", "time_limit"):
        values = trace.jobs[name].drop_nulls()
        assert values.is_between(0, 5e9 if name != "memory" else 2.0**63).all(), name
    assert trace.jobs["duration"].null_count() == 0


ODD_PARTS = ("", "-", "9" * 12, "e30", ":", "\0", "x", " ", "=", ",", "\u0663", "\ud800", "K")
ODD_VALUES = (
    *("1e30", "-1e30", "9" * 30, "9" * 5000, "-5", "0", "inf", "nan", "1e400", "0x10", "1_000"),
    *("99999999999:00:00", "9" * 5000 + ":00:00", "9" * 5000 + "-10", "-1:00:00", "PT9H"),
    *("cpus=4", "cpuu=4", "cpu=1e30", "cpu=-1,mem=x", "gres/gpu:a100=1e9", "gpu:" + "9" * 400),
    *("2024-03-05 06:00 PDT", "2024-07-05 06:00 CET", "2024-03-05 06:00 EST", "2024-02-30"),
    *("0001-01-02T00:00:00", "9999-12-31T23:59:59", "1970-01-01T00:00:00", "-62135596801"),
    *("1_[0-99999999999999999999%2]", "1_[9-1]", "1+0", "1.batch", "UNLIMITED", "CANCELLED by 0"),
    *("64Gn", "4000Mc", "9" * 20 + "P", "1.5.2G", "\u0663", "", "None", "Unknown", "a|b", '"'),
)


@settings(max_examples=example_count(100))
@given(st.integers(0, 10**7))
def test_durations_are_read_as_they_are_written(seconds: int) -> None:
    span = timedelta(seconds=seconds)
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    assert parse_seconds(str(seconds)) == seconds
    assert parse_seconds(str(span)) == seconds
    assert parse_seconds(f"{days}-{clock}") == seconds
    assert parse_seconds(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}") == seconds
    assert parse_seconds(f"P{days}DT{rest // 3600}H{rest // 60 % 60}M{rest % 60}S") == seconds
    assert parse_seconds(str(seconds), unit=60.0) == 60 * seconds


def test_short_and_wrong_durations() -> None:
    assert parse_seconds("12:30") == 750  # Slurm's mm:ss
    assert parse_seconds("2-12") == 60 * 3600  # Slurm's days-hours
    assert parse_seconds("1.5 h") == 5400
    assert parse_seconds("2h30m") == 9000
    assert parse_seconds("2 hours, 30 minutes") == parse_seconds("2 hrs and 30 mins") == 9000
    assert parse_seconds("2 weeks") == 14 * 86400
    assert parse_seconds("1:02:03,5") == 3723.5
    for text in ("UNLIMITED", "Partition_Limit", "3 slots", "1:2:3:4", "P", "-"):
        assert parse_seconds(text) is None


@pytest.mark.parametrize(
    ("text", "gpus", "gpu_type"),
    [
        ("2", 2.0, None),
        ("0.5", 0.5, None),
        ("gpu:2", 2.0, None),
        ("gpu", 1.0, None),
        ("gpus=2", 2.0, None),
        ("ngpus=2", 2.0, None),
        ("gpus:2", 2.0, None),
        ("7696487:2", 2.0, None),  # Slurm's number of the GRES gpu
        ("GPUs: 2", 2.0, None),
        ("gpus=2,cpus=4", 2.0, None),
        ("gpus:a100:2", 2.0, "a100"),
        ("cpus=4", None, None),
        ("gpu:a100:2", 2.0, "a100"),
        ("gpu:a100:2(S:0-1)", 2.0, "a100"),
        ("gres/gpu=4", 4.0, None),
        ("a100:4", 4.0, "a100"),
        ("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1", 2.0, "a100"),
        ("gres/gpu:a100=2,gres/gpu:v100=1", 3.0, "a100|v100"),
        ("gpu:a100:2(IDX:0,3)", 2.0, "a100"),
        ("cpu=8,mem=64G,node=1", None, None),
        ("nvidia.com/gpu=2", 2.0, None),
        ("nvidia.com/gpu: 2", 2.0, None),
        ("2 GPUs", 2.0, None),
        ("2xA100", 2.0, "A100"),
        ("8 x NVIDIA A100-SXM4", 8.0, "NVIDIA A100-SXM4"),
        ("A100 x 2", 2.0, "A100"),
        ("V100x4", 4.0, "V100"),
    ],
)
def test_gpus_are_read_from_counts_gres_and_tres(
    text: str, gpus: float | None, gpu_type: str | None
) -> None:
    tres = parse_gpus(text)
    assert tres is not None
    assert (tres.gpus, tres.gpu_type) == (gpus, gpu_type)


def test_tres_hold_cores_and_memory() -> None:
    tres = parse_tres("cpu=8,mem=64000M,node=2,energy=12")
    assert tres is not None
    assert (tres.cpus, tres.memory) == (8.0, 64000 * 2**20)
    assert parse_tres("two cards") is None


@pytest.mark.parametrize(
    ("text", "cpus", "memory"),
    [
        ("cpus=4,memory=1G,nodes=1", 4.0, 2**30),
        ("cpu=2K,billing=12.5,energy=18446744073709551614", 2048.0, None),
        ("cpu=4,license/matlab@srv=1,fs/disk=0,ic/ofed=3,bb/datawarp=1G", 4.0, None),
        ("cpu=4,gres/gpumem=0,gres/gpuutil=0,gres/nic:mlx5=1,vmem=0,pages=0", 4.0, None),
        ("shard:4,mps:a100:50(S:0-1),craynetwork:1", None, None),
    ],
)
def test_known_names_of_tres_are_read_or_not_counted(
    text: str, cpus: float | None, memory: int | None
) -> None:
    tres = parse_tres(text)
    assert tres is not None
    assert (tres.gpus, tres.cpus, tres.memory) == (None, cpus, memory)


@pytest.mark.parametrize(
    "part",
    [
        *("cpuu=4", "mme=4G", "ngpu2=2", "cpu=x", "cpu=-4", "cpu=1e30", "cpu=9999999999", "cpu="),
        *("mem=four", "mem=9999999999P", "node=1e30", "node=-1", "gres/gpu=x", "gpu:a100=-1"),
    ],
)
def test_other_names_and_amounts_of_tres_are_faults_with_their_line(
    tmp_path: Path, part: str
) -> None:
    text = f"cpu=4,{part},gres/gpu=2"
    with pytest.raises(InputError) as caught:
        read_sacct(tmp_path, sacct_row("1"), sacct_row("2", AllocTRES=text))
    [fault] = caught.value.faults
    assert fault.location == f"{tmp_path / 'log'}: line 3"
    assert fault.message == f"AllocTRES '{part}' is not a valid resource"


GRES_HEAD = "JobID|State|Submit|Start|End|NNodes|ReqGRES"


@pytest.mark.parametrize(
    ("gres", "gpus", "gpu_type"),
    [
        ("PER_NODE:gpu:2", 6.0, None),
        ("PER_JOB:gpu:a100:2", 2.0, "a100"),
        ("PER_NODE:gres:gpu:3090:2", 6.0, "3090"),
        ("PER_TASK:craynetwork:1,gpu:2", 6.0, None),
        ("PER_TASK:gpu:0", 0.0, None),
        ("gpu:3090:2", 6.0, "3090"),
        ("gpu:a100:2,", 6.0, "a100"),
        ("gpu:a100:no_consume:2", 6.0, "a100"),
        ("gpu:no_consume:2", 6.0, None),
        ("7696487:1", 3.0, None),
    ],
)
def test_gres_of_slurm_are_counted_as_stated(
    tmp_path: Path, gres: str, gpus: float, gpu_type: str | None
) -> None:
    row = f"1|COMPLETED|2020-03-05T06:00:00|2020-03-05T06:00:00|2020-03-05T07:00:00|3|{gres}\n"
    trace = read(tmp_path, f"{GRES_HEAD}\n{row}", form="sacct")
    assert trace.jobs.select("gpus", "gpu_type").rows() == [(gpus, gpu_type)]


@pytest.mark.parametrize(
    "gres", ["PER_TASK:gpu:1", "PER_SOCKET:gpu:2", "PER_NODE:gpu:a100:1,PER_TASK:gpu:v100:1"]
)
def test_gpus_of_tasks_are_refused_unless_the_allocated_ones_are_known(
    tmp_path: Path, gres: str
) -> None:
    row = f"1|COMPLETED|2020-03-05T06:00:00|2020-03-05T06:00:00|2020-03-05T07:00:00|3|{gres}"
    message = r"line 2: ReqGRES '.*' doesn't state the GPUs of all tasks; add AllocTRES"
    with pytest.raises(InputError, match=message):
        read(tmp_path, f"{GRES_HEAD}\n{row}\n", form="sacct")
    known = f"{GRES_HEAD}|AllocTRES\n{row}|cpu=4,gres/gpu=6\n"
    assert read(tmp_path, known, form="sacct").jobs["gpus"].to_list() == [6.0]
    with pytest.raises(InputError, match=r"gpus 'PER_.* is not a number of GPUs"):
        read(tmp_path, f'submit,duration,gpus\n0,60,"{gres}"\n')


def test_types_of_digits_and_exabytes_in_tres() -> None:
    tres = parse_tres("gres/gpu:4090=2,gres/gpu=2,mem=1E,")
    assert tres is not None
    assert (tres.gpus, tres.gpu_type, tres.memory) == (2.0, "4090", 2**60)


def test_a_wrong_item_of_tres_is_named_once_a_row(tmp_path: Path) -> None:
    text = f"cpu=4,{'license/a=1,' * 40}foo=4"
    head, row = f"{SACCT_HEAD}|ReqTRES", sacct_row("1", AllocTRES=text)
    with pytest.raises(InputError) as caught:
        read(tmp_path, f"{head}\n{row}|{text}\n", form="sacct")
    [fault] = caught.value.faults
    assert fault.message == "AllocTRES 'foo=4' is not a valid resource"
    with pytest.raises(InputError, match="gpus 'foo=4' is not a number of GPUs"):
        read(tmp_path, f'submit,duration,gpus\n0,60,"{text}"\n')


@pytest.mark.parametrize(
    ("column", "text", "gpus", "note"),
    [
        *(("gres", text, 0.0, "shares") for text in ("mps:50", "shard:4", "gres/shard=4")),
        ("gpus", "mps:50", 0.0, "shares"),
        *(("gres", text, 0.0, "no number") for text in ("craynetwork:1", "license:5", "tpu:8")),
        ("gres", "gpu:a100:4,shard:2", 4.0, ""),
        ("alloctres", "gres/gpu:4090=2", 2.0, ""),
        ("gpus", "a100=4", 4.0, ""),
        ("gpus", "3090:2", 2.0, ""),
        ("gpus", "0.5", 0.5, ""),
    ],
)
def test_other_resources_are_not_gpus(
    tmp_path: Path, column: str, text: str, gpus: float, note: str
) -> None:
    trace = read(tmp_path, f'submit,duration,{column}\n0,60,1\n0,60,"{text}"\n')
    assert trace.jobs["gpus"].to_list() == [1.0, gpus]
    kept = [reason for reason, (action, _) in notes(trace).items() if action == "kept"]
    assert [reason.startswith(note) for reason in kept] == ([True] if note else [])


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *(("gpus", text) for text in ("npu=8", "tpu:8", "craynetwork:1", "4,5", "4, 5", "0,1")),
        *(("gres", text) for text in ("foo=4", "a100=4", "a100:4", "npu=8", "4,5")),
    ],
)
def test_resources_that_may_not_be_gpus_are_refused(tmp_path: Path, column: str, text: str) -> None:
    with pytest.raises(InputError, match=f"line 3: {column} '{text}' is not a number of GPUs"):
        read(tmp_path, f'submit,duration,{column}\n0,60,1\n0,60,"{text}"\n')


def test_half_gpus_may_have_a_decimal_comma(tmp_path: Path) -> None:
    trace = read(tmp_path, "submit;duration;gpus\n0;60;0,5\n0;60;2,0\n")
    assert trace.jobs["gpus"].to_list() == [0.5, 2.0]


def test_states_of_slurm_and_others() -> None:
    read = {
        "COMPLETED": "passed", "Succeeded": "passed", "0": "passed", "137": "failed",
        "TIMEOUT": "failed", "OUT_OF_ME+": None, "CANCELLED by 1000": "cancelled",
        "NODE_FAIL": "failed", "Killed": "cancelled", "PENDING": "unfinished",
    }  # fmt: skip
    assert {text: parse_state(text) for text in read} == read


CSV = """Job ID;User;Account;Queued At;Started;Finished;Run Time (min);# GPUs;State;Memory_GB
j-1;ann;vision;2024-03-05 06:00:00;2024-03-05 06:10:00;2024-03-05 07:10:00;;2;COMPLETED;4
j-2;bob;nlp;2024-03-05 06:30:00;;;30;gres/gpu:a100=4;FAILED;
j-3;bob;nlp;2024-03-05 06:30:00;;;;1;PENDING;
j-4;bob;;2024-03-05 06:30:00;2024-03-05 06:29:59;2024-03-05 06:40:00;;1;Killed;
j-5;bob;;2024-03-05 06:30:00;2024-03-05 06:40:00;;;1;Running;
"""


def test_a_log_is_read_as_its_header_says(tmp_path: Path) -> None:
    trace = read(tmp_path, CSV)
    columns = ("job", "user", "tenant", "submit", "duration", "queue", "gpus", "gpu_type", "memory")
    assert trace.jobs.select(columns).rows() == [
        ("j-1", "ann", "vision", 0.0, 3600.0, 600.0, 2.0, None, 4 * 10**9),
        ("j-2", "bob", "nlp", 1800.0, 1800.0, None, 4.0, "a100", None),
        ("j-4", "bob", "bob", 1800.0, 601.0, 0.0, 1.0, None, None),
    ]
    assert trace.jobs["status"].to_list() == ["passed", "failed", "cancelled"]
    result = notes(trace)
    assert result["submit: column 'Queued At'"] == ("read", 5)
    assert result["duration: column 'Run Time (min)'"] == ("read", 1)
    assert result["pending: never started"] == ("dropped", 1)
    assert result["no end: still running when the log was written"] == ("dropped", 1)
    assert result["started up to a minute before its submission: clocks differ"] == ("repaired", 1)


def test_a_mapping_replaces_what_is_guessed(tmp_path: Path) -> None:
    log = "id,when,took,cards,gpus\n1,0,60,2,9\n2,5,0:02:00,1,9\n"
    with pytest.raises(InputError, match=r"looks like the submission or the run time; its columns"):
        read(tmp_path, log)
    trace = read(tmp_path, log, "?map=submit=when,duration=took,gpus=cards")
    assert trace.jobs.select("job", "submit", "duration", "gpus").rows() == [
        ("1", 0.0, 60.0, 2.0),
        ("2", 5.0, 120.0, 1.0),
    ]
    assert trace.start is None
    with pytest.raises(InputError, match=r"has no column 'whn'; did you mean 'when'"):
        read(tmp_path, log, "?map=submit=whn")
    with pytest.raises(InputError, match=r"unknown meaning 'sumbit'; did you mean 'submit'"):
        read(tmp_path, log, "?map=sumbit=when")


def test_wrong_rows_are_listed_with_their_lines_and_may_be_skipped(tmp_path: Path) -> None:
    log = CSV + "j-6;bob;;yesterday;;;5;1;;\nj-7;bob;;2024-03-05 09:00:00;;;5;two;;\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, log)
    text = str(caught.value)
    assert "line 7: Queued At 'yesterday' is not a time" in text
    assert "line 8: # GPUs 'two' is not a number of GPUs" in text
    trace = read(tmp_path, log, "?skip_invalid=yes")
    assert trace.jobs["job"].to_list() == ["j-1", "j-2", "j-4"]


@settings(max_examples=example_count(100))
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(1, 10**6)),
        min_size=1,
        max_size=20,
    )
)
def test_a_log_has_the_same_jobs_in_every_form(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]
) -> None:
    begin = datetime(2023, 12, 30, tzinfo=ZoneInfo("UTC"))
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["jobId", "submitTime", "startTime", "endTime", "gpuCount"])
    for number, (submit, wait, ran) in enumerate(rows):
        times = (submit, submit + wait, submit + wait + ran)
        moments = [(begin + timedelta(seconds=second)).isoformat() for second in times]
        writer.writerow([number, *moments, 1 + number % 8])
    trace = read(tmp_path_factory.mktemp("log"), file.getvalue())
    first = min(submit for submit, _, _ in rows)
    expected = {
        str(number): (float(submit - first), float(wait), float(ran), 1.0 + number % 8)
        for number, (submit, wait, ran) in enumerate(rows)
    }
    columns = trace.jobs.select("job", "submit", "queue", "duration", "gpus")
    assert {row[0]: row[1:] for row in columns.rows()} == expected


SACCT = """\
JobID|User|Account|QOS|State|Submit|Eligible|Start|End|Elapsed|Timelimit|AllocTRES|ReqTRES
9000|ann|vision|high|COMPLETED|2024-03-05T06:00:00|2024-03-05T06:00:00|2024-03-05T06:10:00|\
2024-03-05T07:10:00|01:00:00|1-00:00:00|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|
9000.batch||vision||COMPLETED|2024-03-05T06:10:00|2024-03-05T06:10:00|2024-03-05T06:10:00|\
2024-03-05T07:10:00|01:00:00||cpu=8|
9001_1|bob|nlp||TIMEOUT|2024-03-05T06:00:00|2024-03-05T08:00:00|2024-03-05T09:10:00|\
2024-03-05T10:10:00|01:00:00|01:00:00|cpu=8,gres/gpu=1,mem=64000M|
9001_[2-5,9%2]|bob|nlp||PENDING|2024-03-05T06:00:00|2024-03-05T08:00:00|Unknown|Unknown|00:00:00|\
UNLIMITED||cpu=8,gres/gpu=1
9002|cem|nlp||NODE_FAIL|2024-03-05T06:00:00|2024-03-05T06:00:00|2024-03-05T06:10:00|\
2024-03-05T06:40:00|00:30:00|1-00:00:00|cpu=8,gres/gpu=4|
9002|cem|nlp||COMPLETED|2024-03-05T06:40:00|2024-03-05T06:42:00|2024-03-05T06:50:00|\
2024-03-05T08:50:00|02:00:00|1-00:00:00|cpu=8,gres/gpu=4|
9003|dan|nlp||RUNNING|2024-03-05T06:40:00|2024-03-05T06:42:00|2024-03-05T06:50:00|Unknown|02:00:00|\
1-00:00:00|cpu=8,gres/gpu=4|
9004|dan|nlp||CANCELLED by 1000|2024-03-05T06:40:00|2024-03-05T06:42:00|None|2024-03-05T06:50:00|\
00:00:00|1-00:00:00||cpu=8,gres/gpu=4
9005|dan|nlp||COMPLETED|2024-03-05T06:40:00|2024-03-05T06:40:00|2024-03-05T06:50:00|\
2024-03-05T07:50:00|01:00:00|UNLIMITED|cpu=4,mem=8G|
"""
_COLUMNS = ("job", "submit", "duration", "queue", "lost", "time_limit", "gpus", "tenant", "status")
EXPECTED: list[tuple[Any, ...]] = [
    ("9000", 0.0, 3600.0, 600.0, None, 86400.0, 2.0, "vision", "passed"),
    ("9002", 0.0, 7200.0, 1200.0, 1800.0, 86400.0, 4.0, "nlp", "passed"),
    ("9005", 2400.0, 3600.0, 600.0, None, None, 0.0, "nlp", "passed"),
    ("9001_1", 7200.0, 3600.0, 4200.0, None, 3600.0, 1.0, "nlp", "failed"),
]


@pytest.mark.parametrize("parsable", [False, True])
def test_accounting_of_slurm_is_read(tmp_path: Path, parsable: bool) -> None:
    text = SACCT.replace("\n", "|\n") if parsable else SACCT
    trace = read(tmp_path, text, form="sacct")
    assert trace.jobs.select(_COLUMNS).rows() == EXPECTED
    assert notes(trace) == {
        "step of a job": ("dropped", 1),
        "element of an array that never started": ("dropped", 5),
        "earlier attempt of a requeued job: lost time": ("repaired", 1),
        "never started": ("dropped", 1),
        "no end: still running when the log was written": ("dropped", 1),
    }
    by_quality = read(tmp_path, text, "?tenant=qos&arrival=submit", form="sacct").jobs
    assert by_quality.filter(pl.col("job") == "9000")["tenant"].to_list() == ["high"]
    assert by_quality.filter(pl.col("job") == "9001_1")["queue"].to_list() == [11400.0]


@pytest.mark.parametrize("new", [False, True])
def test_accounting_in_json_is_that_of_the_text(tmp_path: Path, new: bool) -> None:
    """Slurm 23.11 writes states as lists, and numbers as objects."""
    jobs: list[dict[str, Any]] = []
    lines = SACCT.splitlines()
    for line in lines[1:]:
        row = dict(zip(lines[0].split("|"), line.split("|"), strict=True))
        if "." in row["JobID"]:
            continue
        base, _, task = row["JobID"].partition("_")
        element: Any = int(task) if task.isdecimal() else None
        array: dict[str, Any] = {
            "job_id": int(base) if task else 0,
            "task": task.strip("[]") or None,
        }
        array["task_id"] = {"set": element is not None, "number": element or 0} if new else element

        def moment(text: str) -> int:
            if text in {"Unknown", "None"}:
                return 0
            return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("UTC")).timestamp())

        limit = parse_seconds(row["Timelimit"])
        minutes = None if limit is None else int(limit) // 60
        tres = []
        for part in filter(None, (row["AllocTRES"] or row["ReqTRES"]).split(",")):
            name, _, amount = part.partition("=")
            kind, _, model = name.partition("/")
            megabytes = {"G": 1024, "M": 1}.get(amount[-1], 1) if kind == "mem" else 1
            count = int(amount.rstrip("GM")) * megabytes
            tres.append({"type": kind, "name": model or None, "count": count})
        state = row["State"].split(" ")[0]
        jobs.append(
            {
                "job_id": int(base) if not task else 70_000 + len(jobs),
                "array": array,
                "user": row["User"],
                "account": row["Account"],
                "qos": row["QOS"],
                "state": {"current": [state] if new else state},
                "time": {
                    "submission": moment(row["Submit"]),
                    "eligible": moment(row["Eligible"]),
                    "start": moment(row["Start"]),
                    "end": moment(row["End"]),
                    "elapsed": int(parse_seconds(row["Elapsed"]) or 0),
                    "limit": {"set": True, "infinite": minutes is None, "number": minutes or 0}
                    if new
                    else minutes,
                },
                "tres": {"allocated": tres, "requested": []},
            }
        )
    trace = read(tmp_path, json.dumps({"meta": {}, "jobs": jobs, "errors": []}), form="sacct")
    assert trace.jobs.select(_COLUMNS).rows() == EXPECTED


def test_a_job_of_json_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="job 1: is not a job of sacct --json"):
        read(tmp_path, '{"jobs": [{"job_id": 1}]}', form="sacct")
    with pytest.raises(InputError, match="has no list of jobs; write it with sacct --json"):
        read(tmp_path, "{}", form="sacct")


def test_the_logged_results_are_shown_beside_the_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures are computed again, job by job and second by second."""
    slot, rows = 600, [(0, 100, 900, 2), (50, 0, 1150, 1), (1300, 700, 400, 4), (1900, 0, 1100, 1)]
    path = tmp_path / "log.csv"
    lines = [f"{at},{at + wait},{at + wait + ran},{gpus}" for at, wait, ran, gpus in rows]
    path.write_text("submit,start,end,gpus\n" + "\n".join(lines) + "\n")
    words = ["compare", "--trace", f"csv:{path}", "--slot", "10min", "-p", "fifo", "-q"]
    out = tmp_path / "out"
    assert main([*words, "-o", "json", "--out", str(out)]) == 0
    found = {
        name: values["as it was"]
        for name, values in json.loads(capsys.readouterr().out)["measures"].items()
    }
    ends = [-(-(at + wait + ran) // slot) for at, wait, ran, _ in rows]
    times = [end - at / slot for end, (at, *_) in zip(ends, rows, strict=True)]
    assert found["finished"] == 4
    assert found["mean JCT of finished, slots"] == pytest.approx(sum(times) / 4)
    busy = sum(
        gpus for second in range(5000) for at, wait, ran, gpus in rows
        if at + wait <= second < at + wait + ran
    )  # fmt: skip
    cluster = pl.read_parquet(out / "fifo" / "slots.parquet")
    assert found["gpu in use"] == pytest.approx(busy / (cluster["total_gpu"][0] * max(ends) * slot))
    assert found["cpu in use"] is None
    page = (out / "compare.html").read_text()
    assert ">as it was</th>" in page
    assert not (out / "as it was").exists()


def test_slots_of_the_log_count_waiting_jobs_and_no_unknown_prices(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("submit,start,end,gpus\n0,100,1000,2\n1300,2000,2400,4\n")
    source = ScenarioSource(trace=f"csv:{path}", slot="10min")
    scenario = source.scenario(0)[0]
    run, log = run_policy(scenario, PolicyChoice("fifo")), source.log()
    assert log is not None
    recorded = as_it_was(log, scenario.cluster, scenario.jobs, run)
    assert recorded is not None
    assert recorded.slots["queue"].to_list() == [0, 0, 1, 0]
    assert recorded.slots["running"].to_list() == [1, 1, 0, 1]
    assert recorded.slots["price_gpu"].to_list() == [None] * 4


def test_numbers_have_the_unit_of_their_header(tmp_path: Path) -> None:
    log = "id,submit_ms,duration_ms,gpus\n1,0,60000,1\n2,60000,90000,1\n"
    assert read(tmp_path, log).jobs.select("submit", "duration").rows() == [(0, 60), (60, 90)]
    days = "id,submit,duration,gpus\n1,0,60,1\n2,20100512,60,1\n"
    assert read(tmp_path, days).jobs["submit"].to_list() == [0.0, 20100512.0]
    dates = "id,submit,duration,gpus\n1,20240305,60,1\n2,20240306,60,1\n"
    assert read(tmp_path, dates).jobs["submit"].to_list() == [0.0, 86400.0]


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [("minutes", 60), ("hours", 3600), ("milliseconds", 0.001), ("days", 86400)],
)
def test_the_unit_of_run_times_without_one_is_found(
    tmp_path: Path, unit: str, seconds: float
) -> None:
    spans = [86400, 7200, 90000, 3600]
    rows = "".join(f"0,0,{span},{span / seconds:.4f},1\n" for span in spans)
    trace = read(tmp_path, f"submit,start,end,Runtime,gpus\n{rows}")
    assert trace.jobs["duration"].to_list() == pytest.approx(spans, rel=1e-3)
    reason = f"run time of column 'Runtime' is in {unit}, as start and end show"
    assert notes(trace)[reason] == ("repaired", 4)
    stated = read(tmp_path, f"submit,start,end,Runtime (s),gpus\n{rows}0,0,60,60,1\n")
    assert reason not in notes(stated)
    assert notes(stated)["run time differs from the end minus the start"] == ("kept", 4)


def test_a_stated_unit_of_run_times_is_kept(tmp_path: Path) -> None:
    def durations(header: str, *rows: tuple[int, str]) -> list[float]:
        text = "".join(f"0,0,{span},{ran},1\n" for span, ran in rows)
        return list(read(tmp_path, f"submit,start,end,{header},gpus\n{text}").jobs["duration"])

    minute = [(3600 * n, f"{60 * n}") for n in range(1, 5)]
    assert durations("runtime", *minute) == [3600.0, 7200.0, 10800.0, 14400.0]
    assert durations("runtime_seconds", *minute) == [60.0, 120.0, 180.0, 240.0]
    for text in ("0:01:00", "60s", "1m"):
        assert durations("runtime", *[(3600, text)] * 4) == [60.0] * 4
    hours = [(7200, "2"), (10800, "3"), (14400, "4"), (3960, "1.1h")]
    assert durations("runtime", *hours) == pytest.approx([7200, 10800, 14400, 3960])
    # Two may agree by chance, as suspended jobs do.
    assert durations("runtime", *minute[:2]) == [60.0, 120.0]


def test_decimal_commas_and_thousands(tmp_path: Path) -> None:
    head = "id;submit;duration;gpus;memory_gb\n"

    def values(durations: list[str], gpus: str = "1", memory: str = "1") -> list[float]:
        rows = "".join(f"{n};0;{span};{gpus};{memory}\n" for n, span in enumerate(durations))
        return list(read(tmp_path, head + rows).jobs["duration"])

    # One decimal comma in a column shows what commas mean in all of it.
    assert values(["1,5", "1,000"]) == [1.5, 1.0]
    assert values(["1,000", "20,000"]) == [1000.0, 20000.0]
    assert values(["1,000", "1,020.5"]) == [1000.0, 1020.5]
    assert values(["7.200,5", "7.200", "1.007.200"]) == [7200.5, 7200.0, 1007200.0]
    assert values(["7.200", "7.2"]) == [7.2, 7.2]
    assert values(["7'200", "7 200.5", "7\u00a0200", "1\u202f007\u202f200,5"]) == [
        *(7200.0, 7200.5, 7200.0, 1007200.5),
    ]
    assert values(["1,5 h", "0,25 h"]) == [5400.0, 900.0]
    # A zero doesn't begin thousands, and both marks may be decimal in one column.
    assert values(["0,5", "0.125"]) == [0.5, 0.125]
    assert values(["1,5", "0.125", "7.200", "1,25 h", "1.007.200"]) == [
        *(1.5, 0.125, 7.2, 4500.0, 1007200.0),
    ]
    assert values(["1,5", "2.25", "7.200"]) == [1.5, 2.25, 7.2]
    assert values(["1,5", "2.2512", "7.200 s"]) == [1.5, 2.2512, 7.2]
    assert values(["1,5", "7.200 s"]) == [1.5, 7200.0]
    jobs = read(tmp_path, f"{head}1;0;60;0,5;1,5\n").jobs
    assert jobs.select("gpus", "memory").row(0) == (0.5, 15 * 10**8)


@pytest.mark.parametrize(
    "text",
    [
        *("foo:bar", "tesla", "gpu=two", "gpus=two", "gpus=two,cpus=4", "rtx3090"),
        *("4 x cores", "2 x nodes", "cpus x 2", "4 x CPUs", "1 x core", "memory: 64", "2 x tasks"),
    ],
)
def test_gpus_that_cannot_be_read_are_faults(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="is not a number of GPUs"):
        read(tmp_path, f'id,submit,duration,gpus\n1,0,60,"{text}"\n')


def test_gpus_of_other_makes_and_of_parts(tmp_path: Path) -> None:
    log = "id,submit,duration,gpus\n1,0,60,gpu:1g.5gb:2\n2,0,60,(null)\n3,0,60,V100:4\n"
    trace = read(tmp_path, log)
    assert trace.jobs["gpus"].to_list() == [0.25, 0.0, 4.0]
    assert notes(trace)["no number of GPUs: a CPU job"] == ("kept", 1)


def test_an_empty_column_gives_way_to_a_filled_one(tmp_path: Path) -> None:
    log = "id,submit,duration,gpus,gpus_per_node,nodes\n1,0,60,,2,3\n"
    assert read(tmp_path, log).jobs["gpus"].to_list() == [6.0]


@pytest.mark.parametrize("header", ["job", "tenant", "user"])
def test_names_are_as_short_as_those_of_job_files(tmp_path: Path, header: str) -> None:
    def log(length: int) -> str:
        return f"submit,duration,gpus,{header}\n0,60,1,a\n1,60,1,{'x' * length}\n"

    column = "tenant" if header == "user" else header
    assert read(tmp_path, log(200)).jobs[column].to_list() == ["a", "x" * 200]
    trace = read(tmp_path, log(201))
    assert trace.jobs[column].to_list() == (["job-2", "job-3"] if header == "job" else [None] * 2)
    [reason] = [note for note in notes(trace) if "isn't used" in note]
    assert reason.startswith(f"{header}: column '{header}' isn't used: line 3: 'xxx")
    assert reason.endswith("is not a name of at most 200 characters")
    with pytest.raises(InputError, match=rf"{column} 'x+.* exceeds the limit of 200 characters"):
        read(tmp_path, log(201), f"?map={header}={header}")


def test_names_that_repeat_are_not_ids(tmp_path: Path) -> None:
    log = "name,submit,duration,gpus\ntrain,0,60,1\ntrain,5,60,1\n"
    trace = read(tmp_path, log)
    assert trace.jobs["job"].to_list() == ["job-2", "job-3"]
    assert notes(trace)["column 'name' repeats; jobs are named by line"] == ("read", 2)
    with pytest.raises(InputError, match="is the name of an earlier row"):
        read(tmp_path, log, "?map=job=name")


def test_days_and_months_are_found_in_all_of_a_long_log(tmp_path: Path) -> None:
    begin = datetime(2024, 2, 1)
    moments = [(begin + timedelta(minutes=7 * n)).strftime("%d/%m/%Y %H:%M") for n in range(4000)]
    log = "submit,duration,gpus\n" + "".join(f"{moment},60,1\n" for moment in moments)
    trace = read(tmp_path, log)
    assert str(trace.start) == "2024-02-01 00:00:00"
    assert trace.jobs["submit"].to_list() == [420.0 * n for n in range(4000)]


def test_a_job_that_failed_before_it_started_is_left_out(tmp_path: Path) -> None:
    log = "id,submit,start,end,gpus,state\n1,0,5,50,1,COMPLETED\n2,0,,50,1,FAILED\n"
    assert read(tmp_path, log).jobs["job"].to_list() == ["1"]


def test_attempts_are_counted_once_and_clusters_count_their_own_jobs(tmp_path: Path) -> None:
    lines = SACCT.splitlines()
    running = lines[1].replace("COMPLETED", "RUNNING").replace("2024-03-05T07:10:00", "Unknown")
    twice = read(tmp_path, "\n".join([*lines, lines[1], running]) + "\n", form="sacct")
    assert twice.jobs.select(_COLUMNS).rows() == EXPECTED
    assert notes(twice)["same attempt as an earlier row"] == ("dropped", 2)
    two = [f"Cluster|{lines[0]}", f"a|{lines[1]}", f"b|{lines[1]}"]
    both = read(tmp_path, "\n".join(two) + "\n", form="sacct")
    assert both.jobs["job"].to_list() == ["9000@a", "9000@b"]
    assert both.jobs["lost"].null_count() == 2


def test_values_of_sacct_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    head = "JobID|State|Submit|Start|End|Elapsed|AllocTRES\n"
    times = "2024-03-05T06:00:00|2024-03-05T06:00:00|2024-03-05T07:00:00"
    rows = [
        f"1|COMPLETED|{times}|01:00:00|cpu=4,gres/gpu:a100=x",
        f"2|COMPLETED|{times}|an hour|cpu=4,gres/gpu=2",
        f"3|ASLEEP|{times}|01:00:00|cpu=4,gres/gpu=2",
        f"4|COMPLETED|{times}|01:00:00|cpu=4,gres/shard=2",
    ]
    text = head + "\n".join(rows) + "\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, form="sacct")
    assert [fault.message for fault in caught.value.faults] == [
        "AllocTRES 'gres/gpu:a100=x' is not a valid resource",
        "Elapsed 'an hour' is not a duration",
    ]
    assert [fault.location.rpartition(": ")[2] for fault in caught.value.faults] == [
        "line 2",
        "line 3",
    ]
    trace = read(
        tmp_path, text.replace("a100=x", "a100=2").replace("an hour", "1:0:0"), form="sacct"
    )
    assert trace.jobs["gpus"].to_list() == [2.0, 2.0, 2.0, 0.0]
    assert notes(trace) == {
        "unknown state": ("kept", 1),
        "shares of GPUs (shards or MPS), whose size the log doesn't state: a CPU job": ("kept", 1),
    }


def test_memory_of_old_versions_counts_by_core_or_node(tmp_path: Path) -> None:
    head = "JobID|State|Submit|Start|End|ReqMem|NCPUS|NNodes|ReqGRES\n"
    times = "COMPLETED|2024-03-05T06:00:00|2024-03-05T06:00:00|2024-03-05T07:00:00"
    text = f"{head}1|{times}|4000Mc|8|2|gpu:2\n2|{times}|64Gn|8|2|gpu:a100:1\n"
    jobs = read(tmp_path, text, form="sacct").jobs
    assert jobs["memory"].to_list() == [8 * 4000 * 2**20, 2 * 64 * 2**30]
    assert jobs["gpus"].to_list() == [4.0, 2.0]


@pytest.mark.parametrize(
    ("log", "options"),
    [
        ("start,end,gpus\n0,600,1\n5,600,1\n", []),
        ("submit,start,end,gpus\n0,0,600,1\n5,5,600,1\n", ["--until", "10 slots"]),
    ],
    ids=["no submissions", "an end"],
)
def test_there_is_no_such_column_if_the_log_has_no_counterpart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, options: list[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(log)
    assert main(["compare", "--trace", f"csv:{path}", "-p", "fifo", "-q", *options]) == 0
    assert "as it was" not in capsys.readouterr().out


def test_a_log_without_waits_has_no_such_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("submit,duration,gpus\n0,600,1\n5,600,1\n")
    assert main(["compare", "--trace", f"csv:{path}", "-p", "fifo", "-q"]) == 0
    assert "as it was" not in capsys.readouterr().out


def test_one_command_leads_from_a_log_to_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("id,when,took,cards\n" + "".join(f"{n},{60 * n},3600,2\n" for n in range(9)))
    words = ["compare", "--trace", f"csv:{path}", "--map", "submit=when,duration=took,gpus=cards"]
    assert main([*words, "-p", "fifo,srtf"]) == 0
    shown = capsys.readouterr()
    assert "jobs that arrived" in shown.out
    assert "submit: column 'when'" in shown.err
    assert main(["compare", "-c", "c.yaml", "-j", "j.yaml", "--map", "x=y", "-p", "fifo"]) == 2
    assert "--map: maps columns of a trace; add --trace csv:FILE" in capsys.readouterr().err


BERLIN = ZoneInfo("Europe/Berlin")
BEFORE_REPEATED_HOUR = datetime(2024, 10, 26, 22, 0, tzinfo=ZoneInfo("UTC"))


def clock(seconds: float) -> str:
    moment = BEFORE_REPEATED_HOUR + timedelta(seconds=seconds)
    return moment.astimezone(BERLIN).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize("form", ["csv", "sacct"])
def test_a_start_just_before_the_submission_is_in_the_same_of_two_equal_hours(
    tmp_path: Path, form: str
) -> None:
    # Submitted at 2:30 for the first time, started a second before, ended 40 minutes later at 2:10.
    submit, start, end = (clock(seconds) for seconds in (9000, 8999, 8999 + 2401))
    rows = f"1,COMPLETED,{clock(0)},{clock(10)},{clock(70)},00:01:00,gres/gpu=1\n"
    rows += f"2,COMPLETED,{submit},{start},{end},00:40:01,gres/gpu=1\n"
    text = f"JobID,State,Submit,Start,End,Elapsed,AllocTRES\n{rows}"
    text = text.replace(",", "|") if form == "sacct" else text
    jobs = read(tmp_path, text, "?timezone=Europe/Berlin", form).jobs
    assert jobs["submit"].to_list() == [0.0, 9000.0]
    assert jobs["queue"].to_list() == [10.0, 0.0]
    assert jobs["duration"].to_list() == [60.0, 2401.0]


@settings(max_examples=example_count(100))
@given(
    submit=st.integers(0, 5 * 3600),
    wait=st.integers(-int(CLOCK_SKEW_SECONDS), 5 * 3600),
    span=st.integers(1, 5 * 3600),
)
def test_the_likeliest_reading_of_a_repeated_hour_is_in_order(
    submit: int, wait: int, span: int
) -> None:
    moments = {"submit": submit, "start": submit + wait, "end": submit + wait + span}
    times = {
        name: read_times(pl.Series([clock(moment)]), "Europe/Berlin", "", name)
        for name, moment in moments.items()
    }
    chosen = choose_readings(times, pl.Series([float(span)]), CLOCK_SKEW_SECONDS)
    first = BEFORE_REPEATED_HOUR.timestamp()
    read_back = {name: series[0] - first for name, series in chosen.items()}
    assert read_back["end"] - read_back["start"] == span
    assert read_back["start"] >= read_back["submit"] - CLOCK_SKEW_SECONDS
    for name, moment in moments.items():
        assert moment - read_back[name] in {0, 3600, -3600}
    is_repeated = {name: 7200 <= moment < 4 * 3600 for name, moment in moments.items()}
    if not (is_repeated["start"] and is_repeated["end"]):  # its length shows which hour it was
        assert read_back["start"] == moments["start"]
        assert read_back["end"] == moments["end"]


BARS = (
    "JobID|JobName|User|State|Submit|Start|End|AllocTRES\n"
    "{row}\n"
    "2|plain|bob|COMPLETED|2024-03-05T10:00:00|2024-03-05T10:01:00|2024-03-05T11:01:00|gres/gpu=1\n"
)


@pytest.mark.parametrize("name", ["a|b", "|", "a|||b|", "2|plain", "COMPLETED|2024-03-05T10:00:00"])
def test_bars_in_the_name_of_a_job_of_slurm_belong_to_the_name(tmp_path: Path, name: str) -> None:
    row = f"1|{name}|alice|FAILED|2024-03-05T09:00:00|2024-03-05T09:01:00|2024-03-05T09:31:00|"
    trace = read(tmp_path, BARS.format(row=f"{row}gres/gpu=4"), form="sacct")
    jobs = trace.jobs.sort("job")
    assert jobs["user"].to_list() == ["alice", "bob"]
    assert jobs["gpus"].to_list() == [4.0, 1.0]
    assert jobs["duration"].to_list() == [1800.0, 3600.0]
    assert notes(trace)["separator within a field that isn't used"] == ("repaired", 1)


@pytest.mark.parametrize("header", ["JobID|User|State", "JobID|JobName|User|Comment|State"])
def test_bars_that_may_belong_to_several_columns_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: str
) -> None:
    cells = "1|" + "|".join(name.lower() for name in header.split("|")[1:-1]) + "|y|FAILED"
    tail = "|2024-03-05T09:00:00|2024-03-05T09:01:00|2024-03-05T09:31:00|gres/gpu=4"
    whole = "2|" + "|".join("x" for _ in header.split("|")[1:-1]) + "|FAILED"
    text = f"{header}|Submit|Start|End|AllocTRES\n{cells}{tail}\n{whole}{tail}\n"
    path = tmp_path / "log"
    path.write_text(text)
    assert main(["trace", "info", f"sacct:{path}"]) == 2
    error = capsys.readouterr().err
    count = len(header.split("|")) + 4
    assert f"line 2: has {count + 1} fields, not {count}; use sacct --json" in error
    assert "hint: --skip-invalid leaves invalid rows out" in error
    assert main(["trace", "info", f"sacct:{path}", "--skip-invalid"]) == 0


@pytest.mark.parametrize("quoted", [False, True])
def test_a_log_that_is_cut_off_is_not_half_read(tmp_path: Path, quoted: bool) -> None:
    text = 'user,submit,start,end,gpus\n"a",1000,1010,2000,2\nb,1000,10'
    with pytest.raises(InputError, match=r"line 3: has 3 fields, not 5; copy the file again"):
        read(tmp_path, text if quoted else text.replace('"', ""))
    # An empty last field isn't a missing one.
    assert len(read(tmp_path, "user,submit,start,end,gpus,note\na,1000,1010,2000,2,\n").jobs) == 1


def test_a_line_break_in_a_column_of_slurm_is_named(tmp_path: Path) -> None:
    row = f"{sacct_row('1')}|a\nb\n"
    message = "line 3: has 1 field, not 12; .* use sacct --json if a name or comment contains a"
    with pytest.raises(InputError, match=message):
        read(tmp_path, f"{SACCT_HEAD}|Comment\n{row}", form="sacct")


def test_lines_are_those_of_the_file_after_a_field_of_several(tmp_path: Path) -> None:
    rows = 'a,1000,60,1,"two\nlines\nand more"\n\nb,1000,60,two,\n'
    with pytest.raises(InputError, match=r"line 6: gpus 'two'") as error:
        read(tmp_path, f"user,submit,duration,gpus,note\n{rows}")
    assert any("--skip-invalid" in note for note in error.value.__notes__)


@pytest.mark.parametrize(
    ("header", "zone_matters"),
    [
        ("Submission time (UTC),Runtime (h),Allocated GPUs,Queue Name", False),
        ("creationTimestamp,runtime_h,gpu_count,namespace", True),
        ("submit_ts,duration [hours],gpus,account", True),
        ("Date Submitted,Run Time (h),Number of GPUs,team", True),
        ("sys/creation_time,sys/running_time_h,parameters/gpus,project", True),
        ("qsub_time,ru_wallclock_h,granted_gpus,project", True),
    ],
)
def test_headers_of_other_tools_are_understood(
    tmp_path: Path, header: str, zone_matters: bool
) -> None:
    text = f"{header}\n2024-01-15 10:00:00,1.5,4,x\n"
    trace = read(tmp_path, text, "?timezone=Europe/Berlin")
    assert trace.jobs["duration"].to_list() == [5400.0]
    assert trace.jobs["tenant"].to_list() == ["x"]
    assert trace.jobs["gpus"].to_list() == [4.0]
    assert trace.start == datetime(2024, 1, 15, 9 if zone_matters else 10)


def test_tasks_of_clearml_have_ids(tmp_path: Path) -> None:
    text = "TASK ID,NAME,STARTED,ACTIVE DURATION,GPU COUNT\na,n,2024-01-15 10:00,1h 2m 3s,2\n"
    trace = read(tmp_path, f"{text}b,n,2024-01-15 11:00,2m 3s,1\n")
    assert trace.jobs.select("job", "duration").rows() == [("a", 3723.0), ("b", 123.0)]


def test_times_are_no_names(tmp_path: Path) -> None:
    text = (
        "id,job_ts,queue_ts,user,start_ts,end_ts,gpus\n"
        "a,1700000000,1700000050,alice,1700000100,1700000200,1\n"
    )
    trace = read(tmp_path, text)
    assert trace.jobs["job"].to_list() == ["a"]
    assert trace.jobs["tenant"].to_list() == ["alice"]


HEADER = "job,submit,start,end,gpus"
ROW = "1,2024-01-02 03:04:05,2024-01-02 03:05:05,2024-01-02 05:05:05,2"


@pytest.mark.parametrize(
    ("lines", "dropped"),
    [
        (["sep=;", HEADER.replace(",", ";"), ROW.replace(",", ";")], 1),
        (["# from the batch system, 2024", "# by ops", HEADER, ROW], 2),
        (["", "", HEADER, ROW], 2),
        (["#" + HEADER, ROW], 0),
        (["# from the batch system", "#" + HEADER, ROW], 1),
        (["# a, b, c, d, e, f, g", HEADER, ROW], 1),
        (["# a, b, c, d, e", HEADER, ROW], 1),
        (['# the "first export', "", HEADER, ROW], 2),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_lines_before_the_header_are_skipped(
    tmp_path: Path, lines: list[str], dropped: int, broken: bool
) -> None:
    text = "\n".join(lines) + "\n"
    if broken:
        line = len(lines) + 1
        with pytest.raises(InputError, match=rf"line {line}: has 2 fields, not 5"):
            read(tmp_path, text + "a;b\n" if ";" in text else text + "a,b\n")
        return
    trace = read(tmp_path, text)
    assert trace.jobs.select("duration", "queue", "gpus").row(0) == (7200.0, 60.0, 2.0)
    assert notes(trace).get("line before the header", ("", 0))[1] == dropped


def test_faults_of_the_header_name_its_line(tmp_path: Path) -> None:
    preamble = "# from the batch system, 2024\n\n"
    for header, message in (
        ("user,user,submit,end,gpus", "line 3: the header names 'user' more than once"),
        ("a,b,c,d,e", "line 3: no column looks like the submission"),
        (HEADER, "line 3: no valid row follows the header; give a file with rows"),
    ):
        rows = "" if header == HEADER else ROW
        with pytest.raises(InputError, match=message):
            read(tmp_path, f"{preamble}{header}\n{rows}\n")
    with pytest.raises(InputError, match="has comments only"):
        read(tmp_path, preamble)
    with pytest.raises(InputError, match="looks like GPUs; 'GPUs' is empty; its columns are"):
        read(tmp_path, "submit,duration,GPUs\n0,60,\n")


def test_a_header_and_names_may_begin_with_the_sign_of_comments(tmp_path: Path) -> None:
    rows = [f"#{number}{ROW[1:]}" for number in range(1, 4)]
    for first in ([f"#{HEADER}"], ["# of 2024", f"#{HEADER}"], [HEADER]):
        trace = read(tmp_path, "\n".join([*first, *rows]) + "\n")
        assert trace.jobs["job"].to_list() == ["#1", "#2", "#3"]
        trace = read(tmp_path, "\n".join([*first, *rows, ROW.replace("1,", "4,", 1)]) + "\n")
        assert trace.jobs["job"].to_list() == ["#1", "#2", "#3", "4"]


def test_comments_between_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    other = ROW.replace("1,", "2,", 1)
    trace = read(tmp_path, f"{HEADER}\n{ROW}\n# moved, to the new cluster\n{other}\n# 2 rows\n")
    assert trace.jobs["job"].to_list() == ["1", "2"]
    assert dict(trace.dropped) == {"comment": 2}


def test_headers_of_spreadsheets_are_understood(tmp_path: Path) -> None:
    rows = "1,x,0,1:30,00:01:00,4,9,8,7,6\n2,x,5,2:00,00:02:00,4,9,8,7,6\n"
    header = '"Job\nID",line,_submit,Duration (h:mm),Wait (hh:mm:ss),GPU hours,GPU Count,,,note'
    trace = read(tmp_path, f"{header}\n{rows}")
    assert trace.jobs.select("job", "submit", "duration", "queue", "gpus").rows() == [
        ("1", 0.0, 5400.0, 60.0, 9.0),
        ("2", 5.0, 7200.0, 120.0, 9.0),
    ]
    mapped = read(tmp_path, f"{header}\n{rows}", "?map=cpus=column 8,tenant=line")
    assert mapped.jobs.select("cpus", "tenant").row(0) == (8.0, "x")
    with pytest.raises(InputError, match="line 4: gpus 'two'"):  # after a header of two lines
        read(tmp_path, 'submit,duration,gpus,"a\nb"\n0,60,1,\n0,60,two,\n')


def test_empty_fields_after_the_last_column_are_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, f"{HEADER}\n{ROW},,\n")
    assert trace.jobs["gpus"].to_list() == [2.0]
    assert notes(trace)["empty field after the last column"] == ("repaired", 1)
    with pytest.raises(InputError, match="line 2: has 7 fields, not 5"):
        read(tmp_path, f"{HEADER}\n{ROW},,x\n")


def test_a_row_cut_off_after_fields_of_several_lines_is_refused(tmp_path: Path) -> None:
    whole = ROW + ',"of two\nlines"'
    with pytest.raises(InputError, match="line 4: has 3 fields, not 6; copy the file again"):
        read(tmp_path, f'{HEADER},note\n{whole}\n"2","2024-01-02 03:04:05",2024-01-02 03:05:0')
    with pytest.raises(InputError, match="line 4: a quote isn't closed"):
        read(tmp_path, f'{HEADER},note\n{whole}\n{ROW.replace("1,", "2,", 1)},"of two\n')


def test_a_time_that_a_clock_skipped_is_not_called_unreadable(tmp_path: Path) -> None:
    log = "submit,duration,gpus\n2024-03-31 02:40:00,60,1\n"  # clocks in Berlin went from 2 to 3
    message = (
        "line 2: submit '2024-03-31 02:40:00' is a time that the clock of Europe/Berlin skipped"
    )
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, log, "?timezone=Europe/Berlin")
    assert len(caught.value.faults) == 1
    assert len(read(tmp_path, log).jobs) == 1


def test_a_wait_after_the_submission_gives_the_start(tmp_path: Path) -> None:
    rows = "a,2024-01-02 03:04:05,90s,1-02:03:04,2\nb,2024-01-02 03:04:06,0,60,1\n"
    trace = read(tmp_path, f"job,submit,Wait time,elapsed,gpus\n{rows}")
    assert trace.jobs.select("job", "queue", "duration").rows() == [
        ("a", 90.0, 93784.0),
        ("b", 0.0, 60.0),
    ]
    trace = read(tmp_path, "job,submit,wait_min,elapsed,gpus\na,0,1.5,60,2\n")
    assert trace.jobs["queue"].to_list() == [90.0]
    with pytest.raises(InputError, match="line 2: wait 'soon' is not a duration"):
        read(tmp_path, "job,submit,wait,elapsed,gpus\na,0,soon,60,2\n", "?map=wait=wait")


@pytest.mark.parametrize(
    "zero", ["0001-01-01T00:00:00Z", "0000-00-00 00:00:00", "1970-01-01 00:00:00", "Unknown"]
)
def test_the_zero_of_a_type_of_times_is_a_missing_one(tmp_path: Path, zero: str) -> None:
    rows = f"{ROW}\n2,2024-01-02 03:04:05,2024-01-02 03:05:05,{zero},1\n"
    trace = read(tmp_path, f"{HEADER}\n{rows}")
    assert trace.jobs["job"].to_list() == ["1"]
    assert notes(trace)["no end: still running when the log was written"] == ("dropped", 1)


def test_rows_of_a_job_that_ran_again_are_its_attempts(tmp_path: Path) -> None:
    def row(name: str, submit: str, start: str, end: str) -> str:
        return f"{name},2024-01-02 {submit},2024-01-02 {start},{end and f'2024-01-02 {end}'},2\n"

    first = row("1", "03:00:00", "03:10:00", "04:10:00")
    again = row("1", "03:00:00", "05:00:00", "07:00:00")
    other = row("2", "03:00:00", "03:00:00", "03:30:00")
    trace = read(tmp_path, f"{HEADER}\n{again}{other}{first}")
    # It waited for ten minutes, lost an hour, and waited for fifty minutes.
    assert trace.jobs.sort("job").select("job", "duration", "queue", "lost").rows() == [
        ("1", 7200.0, 3600.0, 3600.0),
        ("2", 1800.0, 0.0, None),
    ]
    assert notes(trace)["earlier attempt of a job: lost time"] == ("repaired", 1)
    running = row("1", "03:00:00", "05:00:00", "")
    waiting = "1,2024-01-02 03:00:00,,,2\n"
    for last in (running, waiting):
        unfinished = read(tmp_path, f"{HEADER}\n{first}{last}{other}")
        assert unfinished.jobs["job"].to_list() == ["2"], "it hasn't ended"
        assert notes(unfinished)["earlier attempt of a job: lost time"] == ("repaired", 1)
    for repeated in (
        row("1", "04:30:00", "05:00:00", "07:00:00"),  # another submission
        row("1", "03:00:00", "03:30:00", "07:00:00"),  # at the same time
    ):
        trace = read(tmp_path, f"{HEADER}\n{first}{repeated}{other}")
        assert len(trace.jobs) == 3
        assert notes(trace)["column 'job' repeats; jobs are named by line"] == ("read", 2)


def test_logs_of_lsf_and_kubernetes_are_understood(tmp_path: Path) -> None:
    lsf = read(
        tmp_path,
        "JOBID;USER;STAT;QUEUE;SUBMIT_TIME;START_TIME;FINISH_TIME;NGPUS\n"
        "101;ann;DONE;gpu;Jan 2 03:04 2024;Jan 2 03:05 2024;Jan 2 05:05 2024;2\n"
        "102;bob;EXIT;gpu;Jan 2 03:04 2024;Jan 2 03:05 2024;Jan 2 04:05 2024;1\n",
    )
    assert lsf.jobs.select("user", "duration", "queue", "gpus", "status").rows() == [
        ("ann", 7200.0, 60.0, 2.0, "passed"),
        ("bob", 3600.0, 60.0, 1.0, "failed"),
    ]
    kubernetes = read(
        tmp_path,
        "name,namespace,creationTimestamp,startTime,completionTime,nvidia.com/gpu,phase\n"
        "a,vision,2024-01-02T03:04:05Z,2024-01-02T03:05:05Z,2024-01-02T05:05:05Z,2,Succeeded\n",
    )
    assert kubernetes.jobs.select("job", "tenant", "gpus", "queue").row(0) == (
        *("a", "vision", 2.0, 60.0),
    )


@pytest.mark.parametrize("columns", ["user,gpus", "state,gpus"])
def test_rows_of_different_jobs_with_one_name_are_not_attempts(
    tmp_path: Path, columns: str
) -> None:
    first, second = ("ann,1", "bob,1") if columns == "user,gpus" else ("COMPLETED,1", "COMPLETED,1")
    trace = read(
        tmp_path,
        f"name,submit,start,end,{columns}\n"
        f"train,2024-01-02 03:00:00,2024-01-02 03:00:00,2024-01-02 04:00:00,{first}\n"
        f"train,2024-01-02 03:00:00,2024-01-02 04:00:00,2024-01-02 05:00:00,{second}\n",
    )
    assert trace.jobs["duration"].to_list() == [3600.0, 3600.0]


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        ("1709618400", "0", "no end: still running when the log was written"),
        ("1709618400", "-1", "no end: still running when the log was written"),
        ("-1", "-1", "never started"),
        ("0", "0", "never started"),
    ],
)
def test_a_number_may_stand_for_a_missing_time(
    tmp_path: Path, start: str, end: str, reason: str
) -> None:
    rows = f"1,1709618400,1709618400,1709618500,2\n2,1709618400,{start},{end},2\n"
    trace = read(tmp_path, f"job,submit,start,end,gpus\n{rows}")
    assert trace.jobs.select("job", "duration").rows() == [("1", 100.0)]
    assert notes(trace)[reason] == ("dropped", 1)
    message = "0, -1, 1900-01-01, 9999-12-31 or a largest integer stands for a missing time"
    assert notes(trace)[f"'end': {message}"] == ("repaired", 1)


@pytest.mark.parametrize(
    "time", ["1900-01-01 00:00:00", "9999-12-31 23:59:59", "31.12.9999 00:00", "1900-01-01T12:00Z"]
)
@pytest.mark.parametrize("options", ["", "?timezone=Asia/Tokyo", "?timezone=America/Denver"])
def test_a_distant_date_may_stand_for_a_missing_time(
    tmp_path: Path, time: str, options: str
) -> None:
    rows = f"{ROW}\n2,2024-01-02 03:04:05,{time},{time},1\n"
    trace = read(tmp_path, f"{HEADER}\n{rows}", options)
    assert trace.jobs["job"].to_list() == ["1"]
    assert notes(trace)["never started"] == ("dropped", 1)


@pytest.mark.parametrize("end", ["1970-01-01T00:00:00", "1969-12-31T19:00:00", "1900-01-01"])
def test_the_zero_of_a_clock_is_a_missing_end_of_slurm(tmp_path: Path, end: str) -> None:
    trace = read_sacct(tmp_path, sacct_row("1"), sacct_row("2", End=end, State="RUNNING"))
    assert trace.jobs["job"].to_list() == ["1"]
    assert notes(trace)["no end: still running when the log was written"] == ("dropped", 1)


@pytest.mark.parametrize("end", ["05:59:59", "05:59:00"])
def test_an_end_just_before_the_start_is_that_of_a_job_that_failed_at_once(
    tmp_path: Path, end: str
) -> None:
    day = "2024-03-05"
    rows = f"1,{day} 06:00:00,{day} {end},1\n2,{day} 06:00:00,{day} 07:00:00,1\n"
    trace = read(tmp_path, f"job,start,end,gpus\n{rows}")
    assert trace.jobs["job"].to_list() == ["2"]
    assert notes(trace)["ended up to a minute before its start: clocks differ"] == ("repaired", 1)
    assert notes(trace)["run time 0: never ran"] == ("dropped", 1)
    times = {"Start": f"{day}T06:00:00", "End": f"{day}T{end}", "Elapsed": ""}
    slurm = read_sacct(tmp_path, sacct_row("1", **times), sacct_row("2"))
    assert slurm.jobs["job"].to_list() == ["2"]
    with pytest.raises(InputError, match="is before the start"):
        read(tmp_path, f"job,start,end,gpus\n1,{day} 06:00:00,{day} 05:58:59,1\n")


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize("day", [-62_135_596_800, -2_208_988_800, 253_402_214_400, 253_402_300_799])
@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("header", ["end", "end_{unit}"])
@pytest.mark.parametrize("first_end", ["1709618500", "2024-03-05T06:01:40Z", ""])
def test_a_distant_number_is_a_missing_time_in_every_unit(
    tmp_path: Path, day: int, unit: str, header: str, first_end: str
) -> None:
    scale = PER_SECOND[unit]
    if first_end.isdecimal():
        first_end = str(int(first_end) * scale)
    rows = f"1,{1709618400 * scale},100,{first_end},2\n2,{1709618400 * scale},100,{day * scale},2\n"
    trace = read(tmp_path, f"job,submit,duration,{header.format(unit=unit)},gpus\n{rows}")
    assert trace.jobs.select("job", "submit").rows() == [("1", 0.0), ("2", 0.0)]
    column = header.format(unit=unit)
    assert notes(trace)[f"'{column}': {STANDS_FOR_MISSING}"] == ("repaired", 1)


@pytest.mark.parametrize(
    ("header", "first", "missing"),
    [
        ("end_ms", "1709618500000", "-1"),
        ("end_ms", "2024-03-05T06:01:40Z", "-1"),
        ("end_min", "28493641.6666666667", "-1"),
        ("end_min", "28493641.6666666667", "4223370240"),
        ("end_hours", "474894.0277777778", "70389504"),
        ("end", "1709618500000000000", "-9223372036854775808"),
        ("end", "1709618500000000000", "9223372036854775807"),
        ("end", "1709618500", "2147483647"),
        ("end", "1709618500", "4294967294"),
        ("end_ms", "1709618500000", "18446744073709551615"),
        ("end", "1709618500000000000", "-6795364578871345152"),
    ],
)
def test_a_sentinel_is_read_in_the_unit_of_its_column(
    tmp_path: Path, header: str, first: str, missing: str
) -> None:
    rows = f"1,1709618400,1709618400,{first},2\n2,1709618400,1709618400,{missing},2\n"
    trace = read(tmp_path, f"job,submit,start,{header},gpus\n{rows}")
    assert trace.jobs["job"].to_list() == ["1"]
    assert trace.jobs["duration"].to_list() == [pytest.approx(100.0)]
    assert notes(trace)["no end: still running when the log was written"] == ("dropped", 1)


def test_a_distant_number_does_not_make_times_absolute(tmp_path: Path) -> None:
    rows = "1,0,0,100,2\n2,50,253402214400,253402300799,2\n"
    trace = read(tmp_path, f"job,submit,start,end,gpus\n{rows}")
    assert trace.jobs.select("job", "duration").rows() == [("1", 100.0)]
    assert notes(trace)["never started"] == ("dropped", 1)


@pytest.mark.parametrize("missing", ["2958465", "2958465.99999", "0", "1", "2", "-1"])
def test_a_sentinel_does_not_hide_serial_dates(tmp_path: Path, missing: str) -> None:
    rows = f"45356.25,45356.2569,45356.2986,2\n45356.25,45356.2569,{missing},2\n"
    with pytest.raises(InputError, match="looks like days since 1900"):
        read(tmp_path, f"submit,start,end,gpus\n{rows}")


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        *(
            (word, "write its name: this machine's is Asia/Tokyo")
            for word in ("localtime", "Local")
        ),
        *((word, "write its name: this machine's is Asia/Tokyo") for word in ("local", "system")),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("utc", "did you mean 'UTC'?"),
        ("Berlin", "write one such as Europe/Berlin"),
        ("posixrules", "write one such as Europe/Berlin"),
        ("right/Europe/Berlin", "write one such as Europe/Berlin"),
        ("Factory", "write one such as Europe/Berlin"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "sacct"])
def test_an_unknown_time_zone_has_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, hint: str, form: str
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    text = f"{HEADER}\n{ROW}\n" if form == "csv" else f"{SACCT_HEAD}\n{sacct_row('1')}\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, f"?timezone={zone}", form)
    assert str(caught.value) == f"timezone: '{zone}' is not a valid time zone; {hint}"


def test_a_sentinel_is_no_deadline(tmp_path: Path) -> None:
    rows = "1709618400,60,1,-1\n1709618400,60,1,1709618500\n"
    trace = read(tmp_path, f"submit,duration,gpus,deadline\n{rows}")
    assert trace.jobs["deadline"].to_list() == [None, 100.0]


def test_a_column_of_zeros_only_is_missing_in_an_absolute_log(tmp_path: Path) -> None:
    rows = "1,1709618400,60,0,1\n2,1709618500,60,0,1\n"
    trace = read(tmp_path, f"job,submit,duration,start,gpus\n{rows}")
    assert trace.jobs.select("job", "queue").rows() == [("1", None), ("2", None)]


def test_a_log_whose_times_begin_in_1970_keeps_its_first_job(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "job,submit,start,end,gpus\n"
        "a,1970-01-01 00:00:00,1970-01-01 00:00:00,1970-01-01 01:00:00,1\n"
        "b,1970-01-01 00:10:00,1970-01-01 00:20:00,1970-01-01 01:20:00,1\n",
    )
    assert trace.jobs.select("job", "duration").rows() == [("a", 3600.0), ("b", 3600.0)]


SACCT_HEAD = "JobID|JobName|User|State|Submit|Eligible|Start|End|Elapsed|Timelimit|AllocTRES"


def sacct_row(job: str, **other: str) -> str:
    """Return a job of an hour that waited for ten minutes, as sacct prints it."""
    row = {
        "JobName": "train", "User": "ann", "State": "COMPLETED", "Submit": "2024-03-05T06:00:00",
        "Start": "2024-03-05T06:10:00", "End": "2024-03-05T07:10:00", "Elapsed": "01:00:00",
        "Timelimit": "1-00:00:00", "AllocTRES": "cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1",
    } | other  # fmt: skip
    row = {"JobID": job, "Eligible": row["Submit"]} | row
    return "|".join(row[name] for name in SACCT_HEAD.split("|"))


def read_sacct(tmp_path: Path, *rows: str, options: str = "") -> Trace:
    return read(tmp_path, "\n".join([SACCT_HEAD, *rows]) + "\n", options, form="sacct")


@pytest.mark.parametrize(
    ("state", "status"),
    [
        *(("OUT_OF_MEMORY", "failed"), ("NODE_FAIL", "failed"), ("BOOT_FAIL", "failed")),
        *(("DEADLINE", "failed"), ("TIMEOUT", "failed"), ("FAILED", "failed")),
        *(("PREEMPTED", "cancelled"), ("CANCELLED by 1001", "cancelled")),
        *(("REVOKED", "cancelled"), ("COMPLETED", "passed")),
    ],
)
def test_jobs_of_slurm_end_in_every_state(tmp_path: Path, state: str, status: str) -> None:
    pending = {"Start": "None", "Elapsed": "00:00:00", "AllocTRES": ""}
    trace = read_sacct(
        tmp_path, sacct_row("1", State=state), sacct_row("2", State=state, **pending)
    )
    assert trace.jobs.select("job", "status", "duration").rows() == [("1", status, 3600.0)]
    if state != "COMPLETED":
        assert notes(trace) == {"never started": ("dropped", 1)}


@pytest.mark.parametrize(
    "state", ["RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "REQUEUED", "SIGNALING"]
)
def test_jobs_of_slurm_that_have_not_ended_are_left_out(tmp_path: Path, state: str) -> None:
    trace = read_sacct(tmp_path, sacct_row("1"), sacct_row("2", State=state, End="Unknown"))
    assert trace.jobs["job"].to_list() == ["1"]
    assert notes(trace) == {"no end: still running when the log was written": ("dropped", 1)}


def test_a_resized_job_of_slurm_is_one_run(tmp_path: Path) -> None:
    large = {"AllocTRES": "cpu=32,gres/gpu=8,node=4", "State": "RESIZING", "Elapsed": "02:00:00"}
    trace = read_sacct(
        tmp_path,
        sacct_row("1", State="NODE_FAIL"),
        sacct_row("1", Start="2024-03-05T07:20:00", End="2024-03-05T09:20:00", **large),
        sacct_row("1", Start="2024-03-05T09:20:00", End="2024-03-05T10:20:00"),
        sacct_row("2"),
    )
    columns = ("job", "duration", "queue", "lost", "gpus", "cpus", "status")
    assert trace.jobs.select(columns).rows() == [
        ("1", 10800.0, 1200.0, 3600.0, 8.0, 32.0, "passed"),
        ("2", 3600.0, 600.0, None, 2.0, 8.0, "passed"),
    ]
    assert notes(trace) == {
        "part of a resized job: with the GPUs of its longest one": ("repaired", 1),
        "earlier attempt of a requeued job: lost time": ("repaired", 1),
    }


def test_limits_that_allow_no_time_are_none(tmp_path: Path) -> None:
    rows = "".join(f"0,60,1,{limit}\n" for limit in ("-1", "0", "00:00:00", "UNLIMITED", "90"))
    trace = read(tmp_path, f"submit,duration,gpus,time_limit\n{rows}")
    assert trace.jobs["time_limit"].to_list() == [None, None, None, None, 90.0]
    assert notes(trace)["time limit of 0 or less: read as no limit"] == ("repaired", 3)


def test_limits_and_lengths_of_slurm_that_are_none(tmp_path: Path) -> None:
    rows = [
        sacct_row(str(number), Timelimit=limit)
        for number, limit in enumerate(["UNLIMITED", "Partition_Limit", "INVALID", "00:30:00"])
    ]
    trace = read_sacct(tmp_path, *rows, sacct_row("9", Elapsed="INVALID"))
    assert trace.jobs["time_limit"].to_list() == [None, None, None, 1800.0, 86400.0]
    assert trace.jobs["duration"].to_list() == [3600.0] * 5


def test_a_job_of_slurm_that_is_eligible_after_its_start_arrives_earlier(tmp_path: Path) -> None:
    trace = read_sacct(tmp_path, sacct_row("1", Eligible="2024-03-05T06:20:00"))
    assert trace.jobs["queue"].to_list() == [600.0]
    reason = "eligible after its start: it arrives when submitted"
    assert notes(trace)[reason] == ("repaired", 1)


def test_dumps_of_slurm_may_be_joined_and_have_other_separators(tmp_path: Path) -> None:
    joined = read_sacct(tmp_path, sacct_row("1"), SACCT_HEAD, sacct_row("2", JobName="Größe|lr"))
    assert joined.jobs["job"].to_list() == ["1", "2"]
    assert notes(joined)["header again, of joined files"] == ("dropped", 1)
    text = f"{SACCT_HEAD}\n{sacct_row('1')}\n"
    for separator in ";\t^":
        other = read(tmp_path, text.replace("|", separator), form="sacct")
        assert other.jobs.equals(read_sacct(tmp_path, sacct_row("1")).jobs)
    csv_log = "submit,duration,gpus\n0,60,1\n"
    twice = read(tmp_path, csv_log * 2)
    assert twice.jobs["gpus"].to_list() == [1.0, 1.0]
    assert dict(twice.dropped) == {"header again, of joined files": 1}


def test_a_cluster_with_a_dot_in_its_name_has_jobs(tmp_path: Path) -> None:
    rows = [f"{cluster}|{sacct_row('1')}" for cluster in ("a.org", "b.org")]
    text = "\n".join([f"Cluster|{SACCT_HEAD}", *rows, f"a.org|{sacct_row('1.batch')}"]) + "\n"
    trace = read(tmp_path, text, form="sacct")
    assert trace.jobs["job"].to_list() == ["1@a.org", "1@b.org"]
    assert notes(trace) == {"step of a job": ("dropped", 1)}


def test_all_faults_of_a_dump_of_slurm_are_listed(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_sacct(
            tmp_path,
            sacct_row("1", Start="soon", Elapsed="an hour", AllocTRES="two"),
            "2|cut",
            sacct_row("3", End="2024-03-05T06:00:00", Elapsed=""),
            sacct_row("4", Submit="2024-03-31T02:30:00"),
            options="?timezone=Europe/Berlin",
        )
    results = [
        f"{fault.location.rpartition(': ')[2]}: {fault.message}" for fault in caught.value.faults
    ]
    assert results == [
        "line 2: Start 'soon' is not a time",
        "line 2: Elapsed 'an hour' is not a duration",
        "line 2: AllocTRES 'two' is not a valid resource",
        "line 3: has 2 fields, not 11",
        "line 4: End '2024-03-05T06:00:00' is before the start",
        "line 5: Submit '2024-03-31T02:30:00' is a time that the clock of Europe/Berlin skipped",
        "line 5: Eligible '2024-03-31T02:30:00' is a time that the clock of Europe/Berlin skipped",
    ]


def json_job(number: int, **other: Any) -> dict[str, Any]:
    """Return a job of an hour as ``sacct --json`` of Slurm 23.11 writes it."""
    begin = int(MOMENT.replace(tzinfo=ZoneInfo("UTC")).timestamp())
    unset = {"set": False, "infinite": False, "number": 0}
    moments = {"submission": begin, "eligible": begin, "start": begin + 600, "end": begin + 4200}
    tres = [
        {"type": "cpu", "name": "", "id": 1, "count": 8},
        {"type": "energy", "name": "", "id": 3, "count": -2},
        {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
        {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 2},
        {"type": "gres", "name": "gpu:v100", "id": 1003, "count": 0},
    ]
    return {
        "job_id": number,
        "array": {"job_id": 0, "task_id": unset, "task": ""},
        "het": {"job_id": 0, "job_offset": unset},
        "user": "",
        "association": {"account": "vision", "user": "ann"},
        "account": "vision",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {
            **moments,
            "elapsed": 3600,
            "limit": {"set": True, "infinite": False, "number": 60},
        },
        "tres": {"allocated": tres, "requested": tres},
    } | other


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (["COMPLETED", "COMPLETING"], "passed"),
        (["COMPLETING", "CANCELLED"], "cancelled"),
        (["RESIZING", "FAILED"], "failed"),
        (["REVOKED"], "cancelled"),
    ],
)
def test_states_in_json_come_with_flags(tmp_path: Path, states: list[str], status: str) -> None:
    job = json_job(1, state={"current": states, "reason": "None"})
    trace = read(tmp_path, json.dumps({"jobs": [job]}), form="sacct")
    columns = ("status", "gpus", "gpu_type", "user", "time_limit")
    assert trace.jobs.select(columns).row(0) == (status, 2.0, "a100", "ann", 3600.0)


def test_components_of_heterogeneous_jobs_have_their_names_in_json(tmp_path: Path) -> None:
    def component(number: int, offset: int) -> dict[str, Any]:
        place = {"set": True, "infinite": False, "number": offset}
        return json_job(number, het={"job_id": 80, "job_offset": place})

    trace = read(tmp_path, json.dumps({"jobs": [component(80, 0), component(81, 1)]}), form="sacct")
    assert trace.jobs["job"].to_list() == ["80+0", "80+1"]


def test_documents_of_json_may_be_joined_and_their_errors_are_shown(tmp_path: Path) -> None:
    one, two = (json.dumps({"jobs": [json_job(number)], "errors": []}) for number in (1, 2))
    assert read(tmp_path, f"{one}\n{two}\n", form="sacct").jobs["job"].to_list() == ["1", "2"]
    with pytest.raises(InputError, match="is not JSON"):
        read(tmp_path, f"{one}\n{two[:-20]}", form="sacct")
    with pytest.raises(InputError, match=r"line 3: is not JSON"):
        read(tmp_path, f"\n{one}\nslurm: error", form="sacct")
    partial = {"jobs": [json_job(1)], "errors": [{"description": "Lost a cluster"}, "Another"]}
    trace = read(tmp_path, json.dumps(partial), form="sacct")
    assert trace.jobs["job"].to_list() == ["1"]
    note = "error of sacct beside its jobs, such as 'Lost a cluster'"
    assert notes(trace)[note] == ("ignored", 2)
    assert len(read(tmp_path, json.dumps(partial | {"errors": 5}), form="sacct").jobs) == 1
    failed = {"jobs": [], "errors": [{"description": "Unable to connect to database"}]}
    message = "sacct reported errors: 'Unable to connect to database'"
    with pytest.raises(InputError, match=message):
        read(tmp_path, json.dumps(failed), form="sacct")


def test_all_faults_of_jobs_in_json_are_listed(tmp_path: Path) -> None:
    wrong = {"allocated": [{"type": "gres", "name": "gpu", "count": "x"}]}
    jobs = [json_job(1), {"job_id": 2}, json_job(3, tres=wrong)]
    with pytest.raises(InputError) as caught:
        read(tmp_path, json.dumps({"jobs": jobs}), form="sacct")
    results = [
        f"{fault.location.rpartition(': ')[2]}: {fault.message}" for fault in caught.value.faults
    ]
    assert results == [
        "job 2: is not a job of sacct --json ('time')",
        "job 3: AllocTRES 'gres/gpu=x' is not a valid resource",
    ]
    trace = read(tmp_path, json.dumps({"jobs": jobs}), "?skip_invalid=yes", form="sacct")
    assert trace.jobs["job"].to_list() == ["1"]


@pytest.mark.parametrize(
    ("tres", "gpus", "gpu_type"),
    [
        ("gres/gpu:a100_1g.5gb=2,gres/gpu=2", 0.25, "a100"),
        ("gres/gpu:1g.10gb=1", 0.125, None),
        ("gres/gpu=3,gres/gpu:a100=1,gres/gpu:a100_2g.10gb=2", 1.5, "a100"),
        ("gres/gpu:nvidia_h100_80gb_hbm3_3g.40gb=2,gres/gpu=2", 1.0, "nvidia_h100_80gb_hbm3"),
        ("gres/gpu:a100_mig_4g.20gb=1", 0.5, "a100"),
        ("gres/gpu:a100_7g.40gb=1,gres/gpu=1", 1.0, "a100"),
        ("gres/gpu:a100_1g.5gb+me=1,gres/gpu=1", 0.125, "a100"),
        ("gres/gpu:1c.3g.20gb=1", 0.125, None),
        ("gres/gpu:a30_1g.6gb=2,gres/gpu=2", 0.5, "a30"),
        ("gres/gpu:a30_4g.24gb=1,gres/gpu=1", 1.0, "a30"),
        ("nvidia.com/gpu=1,nvidia.com/mig-3g.20gb=1", 1.5, None),
        ("nvidia.com/mig-1g.5gb.me=1", 0.125, None),
    ],
)
def test_slices_are_shares_of_a_gpu(tres: str, gpus: float, gpu_type: str | None) -> None:
    held = parse_tres(f"cpu=8,{tres},mem=64G")
    assert held is not None
    assert (held.gpus, held.gpu_type, held.has_slices) == (gpus, gpu_type, True)


def test_slices_of_a_log_are_noted(tmp_path: Path) -> None:
    row = sacct_row("1", AllocTRES="gres/gpu:a100_1g.5gb=2,gres/gpu=2")
    trace = read_sacct(tmp_path, row, sacct_row("2"))
    assert trace.jobs.sort("job")["gpus"].to_list() == [0.25, 2.0]
    assert notes(trace)[SLICES_OF_GPUS] == ("kept", 1)
    rows = 'a,0,60,2,"A100 MIG 1g.5gb"\nb,0,60,gpu:1g.5gb:2,\nc,0,60,1,A100\n'
    trace = read(tmp_path, f"job,submit,duration,gpus,gpu type\n{rows}")
    assert trace.jobs.select("gpus", "gpu_type").rows() == [
        *((0.25, "A100"), (0.25, None), (1.0, "A100")),
    ]
    assert notes(trace)[SLICES_OF_GPUS] == ("kept", 2)


@pytest.mark.parametrize("other", [{"User": "bob"}, {}])
def test_a_number_that_slurm_used_again_is_another_job(
    tmp_path: Path, other: dict[str, str]
) -> None:
    """The database restarted its numbers three months later."""
    later = {name: f"2024-06-05T{hour}" for name, hour in (("Start", "06:10:00"), ("End", "07:10"))}
    again = sacct_row("9000", Submit="2024-06-05T06:00:00", **later, **other)
    trace = read_sacct(tmp_path, sacct_row("9000"), again, sacct_row("9001"))
    days = (datetime(2024, 6, 5) - datetime(2024, 3, 5)).days
    jobs = trace.jobs.sort("job").select("job", "submit", "queue", "lost", "user")
    assert jobs.rows() == [
        ("9000", 0.0, 600.0, None, "ann"),
        ("9000-2", 86400.0 * days, 600.0, None, other.get("User", "ann")),
        ("9001", 0.0, 600.0, None, "ann"),
    ]
    assert notes(trace)["number of a job that Slurm used again: 9000-2 and so on"] == ("read", 1)


def test_a_number_of_another_user_within_a_day_is_another_job(tmp_path: Path) -> None:
    soon = {"Submit": "2024-03-05T08:00:00", "Start": "2024-03-05T08:00:00"}
    again = sacct_row("1", User="bob", End="2024-03-05T09:00:00", **soon)
    assert set(read_sacct(tmp_path, sacct_row("1"), again).jobs["job"]) == {"1", "1-2"}


FIXED_WIDTH = """\
JobID           JobName  Partition      State              Submit
------------ ---------- ---------- ---------- -------------------
1001              train        gpu  COMPLETED 2024-03-05T06:00:00
"""
NO_GPUS = "JobID|State|Submit|Start|End"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FIXED_WIDTH, "has columns of a fixed width, which cut long values; write it with sacct"),
        (sacct_row("1"), "is not a header; leave out --noheader: sacct --allusers"),
        (FIXED_WIDTH.splitlines()[2], "is not a header; leave out --noheader: sacct --allusers"),
        (SACCT_HEAD.replace("|", "-"), "has '-' between columns, of which values consist too"),
        (SACCT_HEAD.replace("|", "::"), "has '::' between columns, not a single ASCII character"),
        (SACCT_HEAD.replace("|", "\u00a7"), "not a single ASCII character"),
        (NO_GPUS, "the header lacks AllocTRES, which has the GPUs; write it with sacct"),
    ],
)
def test_other_outputs_of_sacct_are_refused_with_its_command(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, f"{text}\n", form="sacct")
    [fault] = caught.value.faults
    assert fault.location == f"{tmp_path / 'log'}: line 1"
    assert message in str(fault)
    assert "--parsable2" in fault.hint


@pytest.mark.parametrize("separator", ["^", "~", "#", "@", "!", "\t"])
def test_sacct_may_have_any_separator_that_values_lack(tmp_path: Path, separator: str) -> None:
    text = f"{SACCT_HEAD}\n{sacct_row('1')}\n".replace("|", separator)
    assert read(tmp_path, text, form="sacct").jobs["gpus"].to_list() == [2.0]


def test_a_dump_of_sacct_may_be_quoted(tmp_path: Path) -> None:
    lines = (f"{SACCT_HEAD}\n{sacct_row('1', JobName='a;b')}").replace("|", '";"').splitlines()
    text = "".join(f'"{line}"\n' for line in lines)
    assert read(tmp_path, text, form="sacct").jobs["gpus"].to_list() == [2.0]


TABLE_OF_STEPS = (
    "JobID,State,Submit,Start,End,AllocTRES\n"
    '9,COMPLETED,2024-03-05 06:00,2024-03-05 06:01,2024-03-05 07:01,"cpu=4,gres/gpu=2"\n'
    '9.batch,COMPLETED,2024-03-05 06:00,2024-03-05 06:01,2024-03-05 07:01,"cpu=4,gres/gpu=2"\n'
    '9.0,COMPLETED,2024-03-05 06:00,2024-03-05 06:01,2024-03-05 07:01,"cpu=4,gres/gpu=2"\n'
    '8_1.0,COMPLETED,2024-03-05 06:00,2024-03-05 06:01,2024-03-05 07:01,"cpu=4,gres/gpu=2"\n'
)


@pytest.mark.parametrize(("form", "names"), [("sacct", ["9"]), ("csv", ["9", "8_1.0"])])
def test_a_table_that_pandas_wrote_of_sacct_has_no_steps(
    tmp_path: Path, form: str, names: list[str]
) -> None:
    trace = read(tmp_path, TABLE_OF_STEPS, form=form)
    assert trace.jobs["job"].to_list() == names
    assert trace.jobs["gpus"].to_list() == [2.0] * len(names)
    assert notes(trace)["step of a job"] == ("dropped", 4 - len(names))


def test_numbers_of_other_logs_are_no_steps(tmp_path: Path) -> None:
    for log in (TABLE_OF_STEPS.replace("JobID", "id"), TABLE_OF_STEPS.replace("State", "Result")):
        assert len(read(tmp_path, log).jobs) == 4


def test_a_dump_of_sacct_with_commas_that_are_not_quoted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, TABLE_OF_STEPS.replace('"', ""), form="sacct")
    message = "has 7 fields, not 6; write sacct's columns with bars: leave out --delimiter=,"
    assert [str(fault).partition(": ")[2] for fault in caught.value.faults] == [
        f"line {line}: {message}" for line in range(2, 6)
    ]
    rows = TABLE_OF_STEPS.replace("cpu=4,", "").replace('"', "").replace("9,COMP", "9,x,COMP", 1)
    with pytest.raises(InputError, match=r"line 2: has 7 fields") as caught:
        read(tmp_path, rows, form="sacct")
    assert len(caught.value.faults) == 1, "the steps that can be read are no jobs"


def test_a_cluster_without_gpus_is_noted(tmp_path: Path) -> None:
    row = "1|COMPLETED|2024-03-05T06:00:00|2024-03-05T06:00:00|2024-03-05T07:00:00|8"
    trace = read(tmp_path, f"{NO_GPUS}|NCPUS\n{row}\n", form="sacct")
    assert trace.jobs.select("gpus", "cpus").rows() == [(0.0, 8.0)]
    assert notes(trace)["no column of GPUs, such as AllocTRES: all jobs are CPU jobs"][0] == "read"


@pytest.mark.parametrize("limit", [2**32 - 1, 2**32 - 2, -1])
def test_limits_of_old_json_that_are_none(tmp_path: Path, limit: int) -> None:
    job = {
        "job_id": 1, "state": {"current": "COMPLETED"}, "tres": {"allocated": []},
        "time": {"submission": 1.7e9, "start": 1.7e9, "end": 1.7e9 + 60, "limit": limit},
    }  # fmt: skip
    trace = read(tmp_path, json.dumps({"jobs": [job]}), form="sacct")
    assert trace.jobs["time_limit"].to_list() == [None]


def test_json_without_jobs_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no jobs; choose another --starttime"):
        read(tmp_path, '{"jobs": [], "errors": []}', form="sacct")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("PT0.5H", 1800.0), ("PT1.5M", 90.0), ("P1W", 604800.0), ("PT1H30M15,5S", 5415.5)),
        *(("P1DT2H", 93600.0), ("1.02:03:04", 93784.0), ("00:01:30.5000000", 90.5)),
        *(
            ("1d 02:03:04", 93784.0),
            ("10.00:00:00", 864000.0),
            ("+0 days 00:05:00", 300.0),
            ("3600 second(s)", 3600.0),
        ),
        *(("1h30m0s", 5400.0), ("1m0.5s", 60.5), ("P1M", None), ("PT", None), ("-PT5M", None)),
    ],
)
def test_durations_of_other_programs_are_read(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


def test_a_job_that_runs_has_no_run_time_yet(tmp_path: Path) -> None:
    """W&B exports the run time so far, and no end."""
    text = (
        '"Name","State","User","Created","Runtime","GPU Count"\n'
        '"a","finished","ann","2024-01-15T10:00:00.000Z","3600","8"\n'
        '"b","running","bob","2024-01-15T12:00:00.000Z","300","4"\n'
    )
    trace = read(tmp_path, text)
    assert trace.jobs.select("job", "duration", "gpus").rows() == [("a", 3600.0, 8.0)]
    assert notes(trace)[RUNNING] == ("dropped", 1)


def test_columns_may_be_named_by_group(tmp_path: Path) -> None:
    mlflow = (
        "run_id,experiment_id,status,start_time,end_time,params.num_gpus,tags.mlflow.user\n"
        "a1,0,FINISHED,2024-01-15 10:00:00+00:00,2024-01-15 11:00:00+00:00,4,ann\n"
    )
    columns = ("job", "user", "duration", "gpus", "status")
    assert read(tmp_path, mlflow).jobs.select(columns).rows() == [
        *(("a1", "ann", 3600.0, 4.0, "passed"),),
    ]
    kubernetes = (
        "metadata.name,metadata.namespace,metadata.creationTimestamp,status.startTime,"
        "status.completionTime,status.phase,requests.nvidia.com/gpu,requests.cpu,requests.memory\n"
        "a,v,2024-01-02T03:04:05Z,2024-01-02T03:05:05Z,2024-01-02T05:05:05Z,Succeeded,2,500m,16Gi\n"
        "b,v,2024-01-02T03:04:05Z,<none>,<none>,Pending,1,4,16Gi\n"
    )
    columns = ("job", "tenant", "queue", "gpus", "cpus", "memory", "status")
    assert read(tmp_path, kubernetes).jobs.select(columns).rows() == [
        *(("a", "v", 60.0, 2.0, 0.5, 16 * 2**30, "passed"),),
    ]
    pbs = (
        "id,user,queue,qtime,etime,start,end,Resource_List.ngpus,Resource_List.walltime,"
        "resources_used.walltime,Exit_status\n"
        "1.s,ann,gpu,1700000000,1700000005,1700000100,1700003700,2,02:00:00,01:00:00,0\n"
    )
    columns = ("job", "queue", "gpus", "time_limit", "duration", "status")
    assert read(tmp_path, pbs).jobs.select(columns).rows() == [
        *(("1.s", 100.0, 2.0, 7200.0, 3600.0, "passed"),),
    ]


def test_history_of_htcondor_is_understood(tmp_path: Path) -> None:
    text = (
        "GlobalJobId,Owner,QDate,JobStartDate,CompletionDate,RemoteWallClockTime,RequestGpus,"
        "RequestCpus,JobStatus\n"
        "s#1.0,ann,1700000000,1700000100,1700003700,3600.0,2,8,4\n"
        "s#2.0,bob,1700000000,1700000100,0,60.0,undefined,8,3\n"
        "s#3.0,bob,1700000000,undefined,undefined,0.0,1,8,1\n"
    )
    trace = read(tmp_path, text)
    assert trace.jobs.select("job", "duration", "queue", "gpus", "cpus", "status").rows() == [
        ("s#1.0", 3600.0, 100.0, 2.0, 8.0, "passed"),
        ("s#2.0", 60.0, 100.0, 0.0, 8.0, "cancelled"),
    ]
    assert notes(trace)["pending: never started"] == ("dropped", 1)


@pytest.mark.parametrize(
    ("queue", "tenant", "waited"), [("600", "ann", 600.0), ("gpu", "gpu", None), ("1h", "1h", None)]
)
def test_a_queue_is_a_wait_in_seconds_or_a_name(
    tmp_path: Path, queue: str, tenant: str, waited: float | None
) -> None:
    """Helios and Acme have seconds in it, batch systems names."""
    trace = read(tmp_path, f"job,user,gpu_num,submit_time,duration,queue\na,ann,2,0,60,{queue}\n")
    assert trace.jobs.select("tenant", "queue").rows() == [(tenant, waited)]
    assert not any("isn't used" in reason for reason in notes(trace))


@pytest.mark.parametrize("time", ["1.70E+09", "1,7E+12", "1.70001E+15"])
def test_times_that_a_spreadsheet_rounded_are_refused(tmp_path: Path, time: str) -> None:
    text = f"job;submit;duration;gpus\n1;{time};60;1\n2;{time};60;1\n"
    with pytest.raises(InputError, match=r"line 2: submit '1.*' has lost its last digits; format"):
        read(tmp_path, text)


def test_exact_times_may_have_exponents(tmp_path: Path) -> None:
    """R writes a round number so, and some programs all of them."""
    for first, second in (("1.7e+09", "1700000060"), ("1.700000000e+09", "1.700000060e+09")):
        text = f"job,submit,duration,gpus\n1,{first},60,1\n2,{second},60,1\n"
        assert read(tmp_path, text).jobs["submit"].to_list() == [0.0, 60.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NAME      START      END    GPU\na   2024-01-02   2024-01-03   2\n", "has no separator"),
        ('{"jobs": [{"job_id": 1}]}\n', "is JSON, not a table; write the jobs as a table"),
        ('[\n  {"job": 1}\n]\n', "is JSON, not a table"),
        ('job,submit,duration,gpus\n1,0,60,"0,1,2,3"\n', "is not a number of GPUs; write how many"),
        ("<!DOCTYPE html>\n<html>\n", "is a web page; save the table as CSV"),
        ("\n<!doctype html><title>Sign in, please</title>\n", "is a web page; save the table"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "is a pointer of Git LFS; fetch its file: git lfs pull",
        ),
    ],
)
def test_files_that_are_no_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_numbers_of_a_log_are_read_as_people_write_them(tmp_path: Path) -> None:
    text = (
        "job,submit,start,end,gpus,memory,cpus\n"
        'a,2024-01-02 03:04:05 +0100 CET m=+0.1,#N/A,\\N,2,"65,536",1500m\n'
        "b,2024-01-02 03:04:05 +0100 CET,2024-01-02 03:04:05 +0100 CET m=+0.2,"
        '2024-01-02 04:04:05 +0100 CET,2,"65,536",1500m\n'
        "c,2024-01-02 03:04:05 +0100 CET,<NA>,--,2,16Gi,2\n"
    )
    trace = read(tmp_path, text)
    assert trace.jobs.select("job", "duration", "memory", "cpus").rows() == [
        *(("b", 3600.0, 65536, 1.5),),
    ]
    assert notes(trace)["never started"] == ("dropped", 2)


def test_times_of_the_day_beside_dates_are_noted(tmp_path: Path) -> None:
    text = "job,Submit Date,Submit Time,duration,gpus\n1,2024-03-25,17:06:07,60,1\n"
    trace = read(tmp_path, text)
    assert trace.start == datetime(2024, 3, 25)
    reason = "submit: column 'Submit Time' isn't used: line 2: '17:06:07' is not a time"
    assert notes(trace)[reason] == ("ignored", 1)


@pytest.mark.parametrize(
    "header", ["# of GPUs", "GPU(s)", "n_gpu", "Total GPU", "gpu_request", "acceleratorCount"]
)
def test_headers_of_gpus_are_understood(tmp_path: Path, header: str) -> None:
    trace = read(tmp_path, f"id,Queued,Run Duration,{header}\na,2024-03-25 17:06:07,60,4\n")
    assert trace.jobs.select("gpus", "duration").rows() == [(4.0, 60.0)]


def test_run_times_of_jobs_that_run_are_left_out_whatever_the_state(tmp_path: Path) -> None:
    states = ("RUN", "PEND", "STATE_ACTIVE", "JOB_STATE_RUNNING", "R", "IN_PROGRESS")
    rows = "".join(f"{state},0,60 second(s),1,{state}\n" for state in states)
    done = "d,0,60 second(s),1,STATE_COMPLETED\nv,0,60 second(s),1,JOB_STATE_SUCCEEDED\n"
    trace = read(tmp_path, f"job,submit,run_time,gpus,status\n{rows}{done}")
    assert trace.jobs.select("job", "status").rows() == [("d", "passed"), ("v", "passed")]


def test_a_time_with_dates_is_that_of_the_submission(tmp_path: Path) -> None:
    grafana = (
        'sep=,\n"Time","job","gpus","Duration"\n'
        '"2024-01-15 10:00:00","a",2,"1.5 hours"\n"2024-01-15 11:00:00","b",4,"2.5 mins"\n'
    )
    assert read(tmp_path, grafana).jobs.select("job", "submit", "duration").rows() == [
        *(("a", 0.0, 5400.0), ("b", 3600.0, 150.0)),
    ]
    with pytest.raises(InputError, match="no column looks like the submission"):
        read(tmp_path, "job,time,duration,gpus\na,3600,60,1\n")


@pytest.mark.parametrize("before", ["\n", "$ sacct --parsable2\n", "Welcome to X!\n\n5% full\n"])
def test_lines_before_the_header_of_sacct_are_skipped(tmp_path: Path, before: str) -> None:
    text = f"{before}{SACCT_HEAD}\n{sacct_row('1')}\n{sacct_row('2', Elapsed='x')}\n"
    lines = before.count("\n")
    with pytest.raises(InputError, match=rf"line {lines + 3}: Elapsed 'x' is not a duration"):
        read(tmp_path, text, form="sacct")
    trace = read(tmp_path, text, "?skip_invalid=yes", form="sacct")
    assert trace.jobs["job"].to_list() == ["1"]
    assert notes(trace)["line before the header"] == ("dropped", lines)


def test_a_dump_without_a_header_before_another_is_refused(tmp_path: Path) -> None:
    text = f"{sacct_row('1')}\n{SACCT_HEAD}\n{sacct_row('2')}\n"
    with pytest.raises(InputError, match="line 1: is not a header; leave out --noheader"):
        read(tmp_path, text, form="sacct")


@pytest.mark.parametrize(
    ("rows", "detail"),
    [
        ([], ""),
        ([sacct_row("1.batch"), sacct_row("1.0")], r" \(left out: step of a job: 2\)"),
        ([sacct_row("1_[2-4]")], r" \(left out: element of an array that never started: 3\)"),
        ([sacct_row("1", Start="None", State="PENDING", Elapsed="00:00:00")], " .*pending"),
    ],
)
def test_a_dump_of_sacct_without_jobs_is_reported(
    tmp_path: Path, rows: list[str], detail: str
) -> None:
    with pytest.raises(InputError, match=f"contains no job{detail}.*; give a trace with jobs"):
        read_sacct(tmp_path, *rows)


def test_only_dropped_rows_are_listed_as_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\(left out: pending: never started: 1\)"):
        read(tmp_path, "job,submit,run_time,gpus,state\n1,0,0,1,PENDING\n")


def test_a_tenant_of_a_column_that_a_dump_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="has no Partition, which tenant=partition reads; add Part"
    ):
        read_sacct(tmp_path, sacct_row("1"), options="?tenant=partition")
    assert read_sacct(tmp_path, sacct_row("1")).jobs["tenant"].to_list() == [None]


def test_a_wrong_number_of_nodes_is_a_fault_if_gpus_count_by_node(tmp_path: Path) -> None:
    text = "job,submit,duration,nodes,gpus_per_node\n1,0,60,2,4\n2,0,60,2-4,4\n"
    with pytest.raises(InputError, match="line 3: nodes '2-4' is not a number"):
        read(tmp_path, text)
    assert read(tmp_path, text.replace("2-4", "3")).jobs["gpus"].to_list() == [8.0, 12.0]
    known = text.replace("gpus_per_node", "gpus")
    assert read(tmp_path, known).jobs["gpus"].to_list() == [4.0, 4.0]


@pytest.mark.parametrize("header", ["TRES_PER_NODE", "gres", "ReqGRES"])
def test_gres_of_a_log_count_by_node(tmp_path: Path, header: str) -> None:
    """As squeue and sacct list them; a TRES list counts all nodes."""
    trace = read(tmp_path, f"job,submit,duration,nodes,{header}\n1,0,60,2,gres:gpu:a100:4\n")
    assert trace.jobs.select("gpus", "gpu_type").rows() == [(8.0, "a100")]
    trace = read(tmp_path, "job,submit,duration,nodes,AllocTRES\n1,0,60,2,gres/gpu=4\n")
    assert trace.jobs["gpus"].to_list() == [4.0]


def test_exit_codes_of_slurm_are_states(tmp_path: Path) -> None:
    rows = "1,0,60,1,0:0\n2,0,60,1,1:0\n3,0,60,1,0:9\n"
    trace = read(tmp_path, f"job,submit,duration,gpus,ExitCode\n{rows}")
    assert trace.jobs["status"].to_list() == ["passed", "failed", "failed"]


@pytest.mark.parametrize("quote", ["", '"'])
def test_joined_files_may_each_begin_with_a_mark(tmp_path: Path, quote: str) -> None:
    header = ",".join(f"{quote}{name}{quote}" for name in ("job", "submit", "duration", "gpus"))
    text = f"\ufeff{header}\n1,0,60,1\n\ufeff{header}\n2,5,60,.5\n"
    trace = read(tmp_path, text)
    assert trace.jobs.select("job", "gpus").rows() == [("1", 1.0), ("2", 0.5)]
    assert notes(trace)["header again, of joined files"] == ("dropped", 1)


def test_one_unreadable_time_makes_no_number_a_date(tmp_path: Path) -> None:
    """0 is the beginning of such a log, and not a missing time."""
    text = "job,submit,start,duration,gpus\n1,0,0,60,1\n2,x,y,60,1\n3,9,10,60,1\n"
    with pytest.raises(InputError, match=r"line 3: submit 'x' is not a time.*\n.*start 'y' is not"):
        read(tmp_path, text)
    trace = read(tmp_path, text, "?skip_invalid=yes")
    assert trace.start is None
    assert trace.jobs.select("job", "queue").rows() == [("1", 0.0), ("3", 1.0)]
