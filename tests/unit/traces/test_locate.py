"""Reading ``format:path?option=value``."""

from pathlib import Path

import pytest

from shadowprice.core.errors import InputError
from shadowprice.traces.locate import parse_spec, read_trace

TEXT = """job_id,submission_time,duration,num_gpu
a,100,10,1
b,3700,10,2
c,86500,10,4
"""


@pytest.fixture
def path(tmp_path) -> Path:
    file = tmp_path / "0.2,5:raw.csv"
    file.write_text(TEXT)
    return file


def test_a_spec_is_read_whatever_its_path_holds(path):
    spec = parse_spec(f"itp:{path}?limit=2&from=1h&to=2d&skip_invalid=yes&stretch=2", ["stretch"])
    assert spec.path == path
    assert spec.selection.limit == 2
    assert (spec.selection.begin, spec.selection.end) == (3600.0, 172_800.0)
    assert spec.skip_invalid
    assert dict(spec.synthesis) == {"stretch": "2"}


def test_selection_restarts_the_clock_and_counts(path):
    trace = read_trace(f"itp:{path}?from=1h")
    assert trace.jobs["job"].to_list() == ["b", "c"]
    assert trace.jobs["submit"].to_list() == [0.0, 82_800.0]
    assert dict(trace.dropped) == {"not selected": 1}
    assert read_trace(f"itp:{path}?to=1h").jobs["job"].to_list() == ["a"]
    assert read_trace(f"itp:{path}?limit=1").jobs["job"].to_list() == ["a"]


def test_selecting_tenants(tmp_path):
    file = tmp_path / "p.csv"
    rows = "".join(f"2017-10-09 06:13:0{index},5.0,1,5.0,{vc}\n" for index, vc in enumerate("abab"))
    file.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + rows)
    trace = read_trace(f"philly:{file}?vc=b")
    assert trace.jobs["submit"].to_list() == [0.0, 2.0]
    assert str(trace.start) == "2017-10-09 06:13:01"
    assert read_trace(f"philly:{file}?vc=a,b").jobs.height == 4
    with pytest.raises(InputError, match="has no tenant 'c'; its tenants are a, b"):
        read_trace(f"philly:{file}?vc=c")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "my jobs.csv",
            "trace: expected a trace, got .*; write format:path, such as 'csv:my jobs.csv'",
        ),
        ("{path}", "trace: expected a trace, got .*; write format:path, such as csv:/"),
        (
            "./none.csv",
            r"expected a format and a path, got './none\.csv'; write FILE\.py:NAME:PATH",
        ),
        ("my jobs.yaml", "expected a trace, got .*; give a job file with --jobs 'my jobs.yaml'"),
        ("philly", "expected a trace, got .*; write format:path"),
        ("philly:", "expected a trace, got .*; write format:path"),
        ("itpp:x", "did you mean 'itp'"),
        ("itp:{path}?limits=3", "did you mean 'limit'"),
        ("itp:{path}?limit=-3", "write a whole number above 0"),
        ("itp:{path}?limit=0", "write a whole number above 0"),
        ("itp:{path}?limit", "has no value"),
        ("itp:{path}?limit=1&limit=2", "is repeated"),
        ("itp:{path}?from=3", "without a unit"),
        ("itp:{path}?from=3 slots", "a trace has no slots"),
        ("itp:{path}?skip_invalid=maybe", "write yes or no"),
        ("itp:{path}?from=30d", "no job is selected"),
    ],
)
def test_a_wrong_spec_says_what_to_write(path, spec, message):
    with pytest.raises(InputError, match=message):
        read_trace(spec.format(path=path))


def test_relative_paths_are_found_in_the_folder_of_traces(path, monkeypatch):
    monkeypatch.setenv("SHADOWPRICE_TRACES", str(path.parent))
    assert read_trace(f"itp:{path.name}").jobs.height == 3


def test_the_home_of_an_unknown_user_is_an_ordinary_folder() -> None:
    """`~lab` without such a user is a name, and raises no unexpected exception."""
    assert parse_spec("swf:~no-such-user/lab.swf").path.parts[-2:] == ("~no-such-user", "lab.swf")
