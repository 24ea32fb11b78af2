"""A journal replays to the same state without the policy, and reports where it is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.cli.main import main
from shadowprice.core.bounds import InputLimit
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.events import Decision, DriverEvent, PolicyEvent
from shadowprice.core.policy import Policy, View
from shadowprice.engine import Engine
from shadowprice.engine.engine import Entry
from shadowprice.engine.journal import (
    Header,
    JournalReader,
    JournalWriter,
    Mark,
    entry_line,
    replay,
)
from shadowprice.engine.records import (
    cluster_from_record,
    cluster_record,
    event_from_record,
    event_record,
)
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.journaling import JournalObserver
from tests.support.audited_runs import SEEDS, random_world
from tests.support.examples import example_count
from tests.support.policies import EarliestPlanner, RandomPolicy
from tests.support.straggling_execution import StragglerExecution


class Raising:
    """A policy that must not be called."""

    def __init__(self, like: Policy) -> None:
        self.capabilities = like.capabilities

    def resume(self, view: View) -> None:
        pass  # it knows nothing of earlier events that it needs

    def parameters_in_force(self) -> dict[str, object]:
        return {}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        raise AssertionError(f"asked about {event} in slot {view.slot}")


def policy(seed: int, kind: str) -> Policy:
    return EarliestPlanner() if kind == "planner" else RandomPolicy(seed)


def journal_of(path: Path, seed: int, kind: str = "planner") -> Engine:
    """Write the journal of a run; return the engine at its end."""
    cluster, jobs, incidents, _ = random_world(seed)
    simulation = Simulation(
        cluster,
        jobs,
        policy(seed, kind),
        until=40,
        incidents=incidents,
        execution=StragglerExecution(0.1, seed),
    )
    with JournalObserver(path, kind) as writer:
        return simulation.run([writer])


@settings(deadline=None, derandomize=True, max_examples=example_count(30))
@given(SEEDS, st.sampled_from(["planner", "reactive"]))
def test_a_journal_replays_without_its_policy(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    engine = journal_of(path, seed, kind)
    reader = JournalReader(path)
    again = replay(reader, reader.header.engine(Raising(engine.policy)))
    assert again.state_digest() == engine.state_digest()
    assert again.jobs.keys() == engine.jobs.keys()
    assert (again.ledger.used == engine.ledger.used).all()


@settings(deadline=None, derandomize=True, max_examples=example_count(20))
@given(SEEDS, st.sampled_from(["planner", "reactive"]))
def test_every_prefix_is_the_state_of_its_time(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str
) -> None:
    """Digests are recorded during the run, and each prefix of the journal leads to its own."""
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    cluster, jobs, incidents, _ = random_world(seed)
    digests: list[str] = []

    class Digests(JournalObserver):
        def on_event(self, event: DriverEvent, commands: object) -> None:
            super().on_event(event, commands)  # type: ignore[arg-type]
            assert self._engine is not None
            digests.append(self._engine.state_digest())

    with Digests(path, kind) as writer:
        Simulation(cluster, jobs, policy(seed, kind), until=40, incidents=incidents).run([writer])
    assert len(set(digests)) == len(digests)
    engine = JournalReader(path).header.engine()
    seen = []
    for item in JournalReader(path):
        if isinstance(item, Entry):
            engine.apply(item)
            seen.append(engine.state_digest())
    assert seen == digests


def test_a_cluster_in_another_order_ends_in_the_same_state(tmp_path: Path) -> None:
    """Names count, rows do not."""
    path = tmp_path / "journal.jsonl"
    engine = journal_of(path, 5)
    lines = path.read_text().splitlines()
    header = json.loads(lines[0])
    header["cluster"]["servers"].reverse()
    path.write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    reader = JournalReader(path)
    again = replay(reader, reader.header.engine())
    assert again.cluster.names == engine.cluster.names[::-1]
    assert again.state_digest() == engine.state_digest()
    assert (again.ledger.used[:, ::-1] == engine.ledger.used).all()


def test_another_cluster_does_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal_of(path, 5)
    lines = path.read_text().splitlines()
    header = json.loads(lines[0])
    header["cluster"]["servers"][0][0] = "renamed"
    path.write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    reader = JournalReader(path)
    with pytest.raises(InputError, match=r"line \d+: is not an event"):
        replay(reader, reader.header.engine())


def test_a_changed_number_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal_of(path, 5)
    text = path.read_text()
    path.write_text(text.replace('"progress":{"job-8":7', '"progress":{"job-8":6', 1))
    reader = JournalReader(path)
    with pytest.raises(ShadowpriceError, match=r"written down|without running"):
        replay(reader, reader.header.engine())


def test_events_and_clusters_survive_their_records(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal_of(path, 11)
    reader = JournalReader(path)
    cluster = reader.header.cluster
    again = cluster_from_record(json.loads(json.dumps(cluster_record(cluster))))
    for name in ("names", "roles", "resources", "dimensions", "slot_seconds", "tenants"):
        assert getattr(again, name) == getattr(cluster, name)
    assert (again.capacity == cluster.capacity).all()
    lines = path.read_text().splitlines()[1:]
    for line, item in zip(lines, reader, strict=True):
        if isinstance(item, Entry):
            assert entry_line(item, cluster.names) == line
            assert event_record(event_from_record(event_record(item.event))) == event_record(
                item.event
            )


# ---------------------------------------------------------------- damage


def test_a_line_cut_short_is_dropped_with_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal_of(path, 7)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    entries = sum(b'"digest"' not in line for line in lines[1:])
    for kept in (1, 9, len(lines[-2]) - 2):
        notices: list[str] = []
        path.write_bytes(b"".join(lines[:-2]) + lines[-2][:kept])
        items = list(JournalReader(path, notices.append))
        assert len(items) == entries - 1
        assert len(notices) == 1
        assert f"line {len(lines) - 1}: incomplete line" in notices[0]
    # Nothing was lost but the line's end.
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:-1])
    assert len(list(JournalReader(path))) == entries


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda line: line[: len(line) // 2] + b"\n", "is not an event of a journal"),
        (lambda _: b"\n", "is not an event of a journal"),
        (lambda _: b"[]\n", "is not an event of a journal"),
        (lambda _: b"\xff\xfe\n", "is not text"),
        (lambda _: b"", r"is event \d+, but event \d+ is next"),
        (lambda line: line.replace(b'"slot"', b'"slod"'), "is not an event of a journal"),
        (lambda line: line.replace(b'"event":"', b'"event":"X'), "is not an event of a journal"),
        (lambda line: line + line, r"is event \d+, but event \d+ is next"),
    ],
)
def test_any_other_damage_is_an_error_with_its_place(
    tmp_path: Path, damage: object, said: str
) -> None:
    path = tmp_path / "journal.jsonl"
    journal_of(path, 7)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = damage(lines[4])  # type: ignore[operator]
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=rf"journal\.jsonl: line [56]: {said}"):
        list(JournalReader(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"event":"SlotBegan","slot":0}\n', "unknown journal format None; expected 1"),
        ('{"journal":3}\n', "unknown journal format 3; expected 1"),
        ('{"journal":1}\n', "is not a header"),
        ("", "is not a header"),
        ("[]", "is not a header"),
    ],
)
def test_a_journal_of_another_version_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"journal\.jsonl: line 1: .*{said}"):
        JournalReader(path)
    with pytest.raises(InputError, match="cannot be read"):
        JournalReader(tmp_path / "absent.jsonl")


def test_an_entry_out_of_turn_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal_of(path, 7)
    reader = JournalReader(path)
    engine = reader.header.engine()
    first = next(item for item in reader if isinstance(item, Entry))
    engine.apply(first)
    with pytest.raises(ShadowpriceError, match="event 1 does not follow event 1"):
        engine.apply(first)
    with pytest.raises(ShadowpriceError, match="event 3 does not follow"):
        engine.apply(replace(first, sequence=3))


def test_the_writer_marks_the_state_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.engine.journal.DIGEST_EVERY", 5)
    path = tmp_path / "journal.jsonl"
    engine = journal_of(path, 7)
    marks = [item for item in JournalReader(path) if isinstance(item, Mark)]
    assert [mark.sequence for mark in marks[:-1]] == list(range(5, engine.sequence + 1, 5))
    assert marks[-1] == Mark(engine.sequence, engine.state_digest())


# ---------------------------------------------------------------- the command


def test_values_that_no_reader_accepts_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    engine = journal_of(path, 3)
    header, *lines = (len(line) for line in path.read_bytes().splitlines(keepends=True))

    def limit(size: int) -> None:
        new = InputLimit("journal_line", size, "bytes")
        monkeypatch.setattr("shadowprice.core.bounds.JOURNAL_LINE", new)

    limit(header)
    assert header > max(lines)
    journal_of(path, 3)
    reader = JournalReader(path)
    assert replay(reader, reader.header.engine()).state_digest() == engine.state_digest()
    limit(header - 1)
    with pytest.raises(InputError, match=r"jsonl: header: .* exceeds the limit .* a journal"):
        journal_of(path, 3)
    limit(header)
    with JournalWriter(path, reader.header) as writer:
        limit(50)
        assert engine.last is not None
        with pytest.raises(InputError, match=r"jsonl: event \d+: .* exceeds the limit"):
            writer.add(engine.last, engine)


def test_the_command_shows_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal.jsonl"
    engine = journal_of(path, 7)
    assert main(["journal", str(tmp_path / "..")]) == 2
    assert "has no journal; simulate --journal writes one" in capsys.readouterr().err
    assert main(["journal", str(tmp_path), "--events", "2"]) == 0
    shown = capsys.readouterr().out
    assert "journal of planner on" in shown
    assert "SlotEnded" in shown
    assert "digests agree" in shown
    assert main(["journal", str(path), "-o", "json"]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert captured["events"] == engine.sequence
    assert captured["state_digest"] == engine.state_digest()
    with path.open("ab") as file:
        file.write(b'{"n":')
    assert main(["journal", str(path), "--no-check"]) == 0
    assert "incomplete line" in capsys.readouterr().err
    path.write_text(path.read_text().replace('"digest":"', '"digest":"0'))
    assert main(["journal", str(path)]) == 1
    assert "does not match the recorded digest" in capsys.readouterr().err


def test_a_header_is_read_as_it_was_written(tmp_path: Path) -> None:
    on: Cluster = random_world(3)[0]
    made = Engine(on, EarliestPlanner(), until=9, acknowledges=True)
    with JournalWriter(tmp_path / "journal.jsonl", Header.of(made, "planner")) as writer:
        writer.mark(made)
    header = JournalReader(tmp_path / "journal.jsonl").header
    assert (header.policy, header.until, header.acknowledges) == ("planner", 9, True)
    assert header.capabilities == made.capabilities
    assert header.engine().state_digest() == made.state_digest()
