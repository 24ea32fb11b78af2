"""Whatever order commands come in, and wherever power fails, no generation runs twice.

The test drives the store and the claim as the executor and its supervisors do, with a power cut
before or after any write that reaches the disk. Reports from before the cut must hold after it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shadowprice.core.program import Program
from shadowprice.executors.contract import GenerationSpec, Receipt, ServerAllocation
from shadowprice.executors.generations import disk
from shadowprice.executors.generations.generation import TERMINAL_PHASES, Phase
from shadowprice.executors.generations.store import GenerationStore
from tests.support.examples import example_count

JOBS = ("job", "../job")
PLAN = {"processes": [], "bell": ""}
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A directory where syncing is free: only the order of writes counts here."""


class PowerCutError(BaseException):
    """The machine lost power."""


@contextmanager
def cut_after(writes: int) -> Iterator[None]:
    """Let the power fail at a write: at an even number before it reaches the disk, else after."""
    real_sync, real_rename = disk.sync_file, Path.rename
    left = [writes]

    def count(act: object, *arguments: object) -> object:
        left[0] -= 1
        if left[0] == 0 and writes % 2 == 0:
            raise PowerCutError
        result = act(*arguments)  # type: ignore[operator]  # a function
        if left[0] == 0:
            raise PowerCutError
        return result

    with (
        patch.object(disk, "sync_file", lambda *given: count(real_sync, *given)),
        patch.object(Path, "rename", lambda *given: count(real_rename, *given)),
    ):
        yield


class Fencing(RuleBasedStateMachine):
    """An executor's state under random commands, interrupted anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.store = GenerationStore(Path(self._folder.name))
        self.launched: Counter[tuple[str, int]] = Counter()
        self.running: dict[tuple[str, int], disk.FileLock] = {}
        self.named: Counter[str] = Counter()
        """The newest generation of a job whose command was acknowledged."""
        self.unsettled: dict[str, int] = {}
        self.barred: set[tuple[str, int]] = set()

    def teardown(self) -> None:
        for lock in self.running.values():
            lock.release()
        self._folder.cleanup()

    jobs = st.sampled_from(JOBS)
    numbers = st.sampled_from((0, 0, 0, 1, 1, -1, 2))
    """A generation, counted from the newest: commands come late, early, or again."""
    cuts = st.one_of(st.none(), st.none(), st.integers(1, 14))

    @contextmanager
    def power(self, cut: int | None) -> Iterator[None]:
        """Run with a power cut. After it, everything that ran is gone, and the service restarts."""
        if cut is None:
            yield
            return
        try:
            with cut_after(cut):
                yield
        except PowerCutError:
            event("cut")
            for lock in self.running.values():
                lock.release()
            self.running.clear()
            self.unsettled.clear()
            self.store = GenerationStore(Path(self._folder.name))
            for _, _, generation in list(self.store.live()):
                if generation.state()["phase"] not in TERMINAL_PHASES:
                    generation.mark_lost_if_dead("power")

    def absolute(self, job: str, number: int) -> int:
        return max(1, self.store.fence(job) + number)

    @rule(job=jobs, number=numbers, cut=cuts)
    def start(self, job: str, number: int, cut: int | None) -> None:
        number = self.absolute(job, number)
        order = GenerationSpec(
            number, job, number, (ServerAllocation("one", 1),), Program(("true",))
        )
        before = self.named[job]
        with self.power(cut):
            receipt = self.store.accept(order, PLAN)
            event(f"start {receipt.value}")
            if receipt is Receipt.ACCEPTED:
                assert number > before
                assert not [entry for entry in self.running if entry[0] == job]
                assert job not in self.unsettled
                self.named[job] = number
            elif receipt is Receipt.STALE:
                assert number < self.store.fence(job)
            elif receipt is Receipt.BUSY:
                assert number > before

    @rule(job=jobs, number=numbers, cut=cuts, command=st.integers(10, 13))
    def stop(self, job: str, number: int, cut: int | None, command: int) -> None:
        number = self.absolute(job, number)
        with self.power(cut):
            receipt = self.store.stop(command, job, number, 5.0)
            event(f"stop {receipt.value}")
            if receipt is Receipt.ACCEPTED and not self.launched[job, number]:
                self.barred.add((job, number))
                self.named[job] = max(self.named[job], number)

    @rule(job=jobs, number=numbers, cut=cuts)
    def claim(self, job: str, number: int, cut: int | None) -> None:
        """A supervisor, the first or one too many, starts to launch a generation."""
        number = self.absolute(job, number)
        generation = self.store.generation(job, number)
        if not generation.path.exists():
            return
        with self.power(cut):
            lock = generation.claim({"supervisor": 1})
            if lock is not None:
                # The processes start now.
                event("launched")
                self.launched[job, number] += 1
                assert job not in self.unsettled
                assert not [entry for entry in self.running if entry[0] == job]
                self.running[job, number] = lock
                generation.write_state({**generation.state(), "phase": Phase.RUNNING})

    @rule(job=jobs, number=numbers, cut=cuts)
    def end(self, job: str, number: int, cut: int | None) -> None:
        number = self.absolute(job, number)
        lock = self.running.get((job, number))
        if lock is None:
            return
        with self.power(cut):
            generation = self.store.generation(job, number)
            generation.write_state({**generation.state(), "phase": Phase.ENDED, "ending": "done"})
            self.running.pop((job, number)).release()

    @rule(job=jobs, number=numbers)
    def kill_supervisor(self, job: str, number: int) -> None:
        number = self.absolute(job, number)
        lock = self.running.pop((job, number), None)
        if lock is not None:
            lock.release()
            assert self.store.generation(job, number).mark_lost_if_dead("killed")

    @rule(job=jobs, number=numbers)
    def lose_supervisor(self, job: str, number: int) -> None:
        """It dies; its processes may live, and no process has noticed yet."""
        number = self.absolute(job, number)
        lock = self.running.pop((job, number), None)
        if lock is not None:
            lock.release()
            self.unsettled[job] = number

    @rule(job=jobs)
    def look(self, job: str) -> None:
        if job in self.unsettled:
            assert self.store.generation(job, self.unsettled.pop(job)).mark_lost_if_dead("killed")

    @rule(job=jobs, number=numbers, cut=cuts)
    def acknowledge_end(self, job: str, number: int, cut: int | None) -> None:
        number = self.absolute(job, number)
        with self.power(cut):
            if self.store.acknowledge_end(job, number):
                event("forgotten")

    @rule(job=jobs, cut=cuts)
    def delete_job_data(self, job: str, cut: int | None) -> None:
        with self.power(cut):
            if self.store.delete_job_data(job):
                event("discarded")
                assert not [entry for entry in self.running if entry[0] == job]

    @rule()
    def restart(self) -> None:
        self.store = GenerationStore(Path(self._folder.name))

    @invariant()
    def nothing_ran_twice(self) -> None:
        assert not [one for one, times in self.launched.items() if times > 1]

    @invariant()
    def one_generation_of_a_job_at_a_time(self) -> None:
        assert len({job for job, _ in self.running}) == len(self.running)

    @invariant()
    def what_was_barred_never_ran(self) -> None:
        assert not self.barred & {one for one, times in self.launched.items() if times}

    @invariant()
    def what_was_answered_is_remembered(self) -> None:
        for job, number in self.named.items():
            assert self.store.fence(job) >= number
        live = {(job, number): generation for job, number, generation in self.store.live()}
        for one in self.running:
            assert one in live
            assert live[one].state()["phase"] not in TERMINAL_PHASES


Fencing.TestCase.settings = settings(
    max_examples=example_count(50),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestFencing = Fencing.TestCase


@given(
    values=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3)),
    torn=st.integers(0, 600),
    flipped=st.integers(0, 1),
)
@settings(max_examples=example_count(200), deadline=None)
def test_a_record_is_the_new_one_or_the_old_one_wherever_a_write_is_torn(
    values: list[dict[str, str]], torn: int, flipped: int
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, "record")
        record = disk.StateFile.create(path, {"first": "value"}, 1024)
        before: dict[str, str] = {"first": "value"}
        for value in values:
            record.write(value)
            before = value
        assert record.read() == before
        data = path.read_bytes()
        after = {"after": "torn"}
        record.write(after)
        written = path.read_bytes()
        start = next((index for index in range(2048) if data[index] != written[index]), 0)
        cut = start + torn
        content = written[:cut] + data[cut:]
        # a file that was being written during the power cut may hold anything
        if flipped and start < cut:
            content = content[: cut - 1] + bytes([content[cut - 1] ^ 1]) + content[cut:]
        path.write_bytes(content)
        assert record.read() in (before, after)
        record.write({"then": "goes on"})
        assert record.read() == {"then": "goes on"}


def test_a_record_without_a_whole_slot_says_so(tmp_path: Path) -> None:
    path = tmp_path / "record"
    record = disk.StateFile.create(path, {"a": 1}, 256)
    path.write_bytes(b"\0" * 512)
    with pytest.raises(ValueError, match="no complete record"):
        record.read()
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="no complete record"):
        record.read()
    with pytest.raises(ValueError, match="does not fit"):
        disk.StateFile.create(path, {"a": "x" * 300}, 256)
