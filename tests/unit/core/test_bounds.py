"""Limits are checked before anything is allocated, and the documentation states them."""

from __future__ import annotations

import re
import tracemalloc
from fractions import Fraction
from pathlib import Path

import pytest

from shadowprice.core import bounds
from shadowprice.core.amounts import parse_amount, parse_duration
from shadowprice.core.errors import InputError
from shadowprice.core.ledger import Ledger
from shadowprice.core.specs import ClusterSpec, JobSpec, LimitedModel, validate
from shadowprice.core.wording import closest_match, escape_controls, escape_json, quote_for_display

SERVER = {"name": "s", "capacity": {"gpu": 8}}
JOB = {
    "name": "j",
    "minibatch_time": "1s",
    "worker": {"gpu": 1},
    "utility": {"kind": "constant", "value": 1},
}


def message_of(model: type[LimitedModel], document: object) -> str:
    spec, faults = validate(model, document, "file")
    if spec is None:
        return "; ".join(map(str, faults))
    try:
        if isinstance(spec, ClusterSpec):
            spec.resolve()
        else:
            cluster, _ = validate(ClusterSpec, {"slot": "1min", "servers": [SERVER]}, "")
            assert cluster is not None
            assert isinstance(spec, JobSpec)
            spec.resolve(cluster.resolve())
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("model", "document", "bound"),
    [
        (ClusterSpec, {"slot": "1min", "servers": [{**SERVER, "count": 10**9}]}, bounds.SERVERS),
        (
            ClusterSpec,
            {
                "slot": "1min",
                "servers": [
                    {**SERVER, "count": 150_000},
                    {**SERVER, "name": "t", "count": 150_000},
                ],
            },
            bounds.SERVERS,
        ),
        (ClusterSpec, {"slot": "1min", "horizon": 10**8, "servers": [SERVER]}, bounds.HORIZON),
        (
            ClusterSpec,
            {
                "slot": "1min",
                "servers": [{"name": "s", "capacity": {f"r{n}": 1 for n in range(65)}}],
            },
            bounds.RESOURCES,
        ),
        (JobSpec, {**JOB, "chunks": 10**12}, bounds.CHUNKS),
        (JobSpec, {**JOB, "chunks": 10**8}, bounds.WORKER_COUNTS),
        (JobSpec, {**JOB, "minibatches": 10**12, "chunks": 10}, bounds.JOB_SLOTS),
        (JobSpec, {**JOB, "minibatches": 10**12, "epochs": 10**12}, bounds.PROGRESS),
        (JobSpec, {**JOB, "epochs": 10**15}, bounds.NUMBER),
        (JobSpec, {**JOB, "arrival": "1e13 slots"}, bounds.SLOT),
        (JobSpec, {**JOB, "arrival": "400000d"}, bounds.SECONDS),
        (JobSpec, {**JOB, "labels": {f"l{n}": "x" for n in range(101)}}, bounds.LABELS),
        (JobSpec, {**JOB, "labels": {"l": "x" * 2001}}, bounds.TEXT),
        (JobSpec, {**JOB, "name": "x" * 201}, bounds.NAME),
    ],
)
def test_too_large_inputs_are_refused_with_the_limit_before_they_are_built(
    model: type[LimitedModel], document: object, bound: bounds.InputLimit
) -> None:
    tracemalloc.start()
    message = message_of(model, document)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bound.what in message
    assert peak < 20 << 20


def test_a_plan_of_too_many_cells_is_refused_before_the_ledger_is_made() -> None:
    spec, _ = validate(
        ClusterSpec,
        {"slot": "1min", "horizon": 100_000, "servers": [{**SERVER, "count": 100_000}]},
        "",
    )
    assert spec is not None
    cluster = spec.resolve()
    with pytest.raises(InputError, match="cells of a plan"):
        Ledger(cluster, cluster.horizon)
    Ledger(cluster, 1)


def test_a_window_that_moves_beyond_its_end_holds_only_present_reservations() -> None:
    spec, _ = validate(ClusterSpec, {"slot": "1min", "horizon": 4, "servers": [SERVER]}, "")
    assert spec is not None
    near, far = (Ledger(spec.resolve(), 4) for _ in range(2))
    for step in range(1, 23):
        near.advance(step)
    far.advance(22)
    assert near.start == far.start == 22
    assert (near.used == far.used).all()
    assert (near.versions == far.versions).all()
    far.advance(10**12)  # at once, at any distance
    assert far.start == 10**12


@pytest.mark.parametrize("value", [True, False])
def test_booleans_are_no_counts(value: bool) -> None:
    document = {"slot": "1min", "servers": [{**SERVER, "count": value}]}
    assert "is given a boolean" in message_of(ClusterSpec, document)
    assert "is given a boolean" in message_of(JobSpec, {**JOB, "epochs": value})
    assert "is given a boolean" in message_of(
        JobSpec, {**JOB, "minibatch_time": None, "throughput": {value: 1.0}}
    )
    utility = {"kind": "constant", "value": value}
    assert "is given a boolean" in message_of(JobSpec, {**JOB, "utility": utility})


@pytest.mark.parametrize(
    "text", ["1e999s", "1e-300s", "9" * 5000 + "s", "1e13 slots", "400000d", "1e-12 slots"]
)
def test_durations_beyond_what_is_kept(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 300


def test_durations_within() -> None:
    assert parse_duration("1e-9s").seconds == Fraction(1, 10**9)
    assert parse_duration("1000000000 slots").slots == 10**9
    assert parse_duration("0s").seconds == 0


@pytest.mark.parametrize(
    "value",
    [10**5000, "9" * 5000, float("inf"), float("nan"), 1e300],
    ids=["digits", "text", "inf", "nan", "float"],
)
def test_amounts_beyond_what_is_kept(value: float | str) -> None:
    with pytest.raises(InputError) as caught:
        parse_amount(value)
    assert len(str(caught.value)) < 300


def test_nothing_that_a_terminal_obeys_is_shown() -> None:
    hostile = "a\x1b[2J\x07\x9b31m\u202eb\u2028\U000e0041\ud800é\t\n"
    assert escape_controls(hostile) == (r"a\x1b[2J\x07\x9b31m\u202eb\u2028\U000e0041\ud800é\t\n")
    assert escape_controls("one\ntwo", lines=True) == "one\ntwo"
    assert quote_for_display("x" * 10**6) == repr("x" * 60 + "...")
    assert escape_json('"\x9b\U000e0041"') == '"\\u009b\\udb40\\udc41"'


def test_the_search_for_alike_names_is_bounded() -> None:
    assert closest_match("orsis", ["oasis", "fifo"]) == "oasis"
    # A part of one name identifies it; a part of several, or of a few letters, doesn't.
    assert closest_match("lost", ["slot", "server_lost", "server_back"]) == "server_lost"
    assert closest_match("serv", ["slot", "server_lost", "server_back"]) is None
    assert closest_match("ack", ["slot", "server_back"]) is None
    assert closest_match("x" * 10**6, ["oasis"]) is None
    assert closest_match("zzz", (f"name-{n}" for n in range(10**6))) is None


def test_the_documentation_states_every_bound() -> None:
    page = Path(__file__).parents[3].joinpath("docs/formats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \| ([\d,.e+]+) \| (.*) \|$", page, re.MULTILINE)
    stated = {name: (most, what) for name, most, what in rows}
    assert stated == {
        name: (f"{bound.maximum:,}", bound.what) for name, bound in bounds.LIMITS_BY_NAME.items()
    }
