"""A roster whose generations are directories of this machine: orders are on disk when answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from shadowprice.executors.contract import ExecutorError, GenerationSpec, LogChunk, Receipt, Started
from shadowprice.executors.generations import logs
from shadowprice.executors.generations.entry import Entry
from shadowprice.executors.generations.generation import OVER, Generation
from shadowprice.executors.generations.pieces import piece
from shadowprice.executors.generations.roster import Roster
from shadowprice.executors.generations.store import Store

Known = TypeVar("Known", bound=Entry)


class Desk(Roster[Known]):
    """Orders, and what is kept of jobs, in a `Store`.

    Parameters
    ----------
    path : Path
        The executor's directory.
    make : callable
        Makes an entry of a job, a generation and its directory.
    """

    store: Store

    def __init__(self, path: Path, make: Callable[[str, int, Generation], Known]) -> None:
        super().__init__()
        self._path = path
        self._make = make

    def open(self) -> None:
        """Begin.

        Raises
        ------
        OSError
            If the directory cannot be made.
        """
        self.store = Store(self._path)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise ExecutorError(f"{self._path}: {error}") from error

    def find(self) -> None:
        """Take up what an executor before this one left."""
        for job, number, generation in self.store.live():
            entry = self._make(job, number, generation)
            entry.read()
            self.entries[job, number] = entry

    async def start(
        self, spec: GenerationSpec, prepare: Callable[[Known], tuple[dict[str, Any], str]]
    ) -> tuple[Receipt, Known | None, str]:
        """Take an order to start; with the job's lock held.

        Parameters
        ----------
        spec : GenerationSpec
            What is to run.
        prepare : callable
            Returns the plan of an entry, and why there is none.

        Returns
        -------
        receipt : Receipt
            How it was taken.
        entry : Entry or None
            What stands for it, where it is new.
        refusal : str
            Why it will not run; empty where it will.

        Raises
        ------
        ExecutorError
            If the disk did not take it.
        """
        key = spec.job, spec.generation
        with self._told():
            receipt = await asyncio.to_thread(self.store.weigh, spec)
            if receipt is not Receipt.ACCEPTED:
                return receipt, None, ""
            entry = self._make(*key, self.store.generation(*key))
            entry.placement = spec.placement
            plan, refusal = prepare(entry)
            entry.take_plan(plan)
            self.entries[key] = entry
            try:
                await asyncio.to_thread(self._accept, spec, plan, refusal)
            except BaseException:
                del self.entries[key]
                raise
        return receipt, entry, refusal

    def _accept(self, spec: GenerationSpec, plan: dict[str, Any], refusal: str) -> None:
        for folder in plan.get("folders", ()):
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.store.accept(spec, plan, refusal)

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None
    ) -> tuple[Receipt, Known | None]:
        """Take an order to stop; with the job's lock held.

        Parameters
        ----------
        command, job, generation, grace
            As of `Executor.stop`.

        Returns
        -------
        receipt : Receipt
            How it was taken.
        entry : Entry or None
            The generation that it ends.

        Raises
        ------
        ExecutorError
            If the disk did not take it.
        """
        entry = self.entries.get((job, generation))
        if grace is None:
            grace = entry.grace if entry is not None else 0.0
        with self._told():
            receipt = await asyncio.to_thread(
                self.store.stop, command, job, generation, max(0.0, grace)
            )
        if receipt not in {Receipt.ACCEPTED, Receipt.DUPLICATE}:
            return receipt, None
        if entry is None:
            entry = self._make(job, generation, self.store.generation(job, generation))
            if await asyncio.to_thread(entry.is_live):
                self.entries[job, generation] = entry
        entry.stop_ordered = True
        entry.told_end = False  # it is told again, now as the answer to this order
        return receipt, entry

    async def look(self, entry: Known) -> None:
        """Read where a generation is, and report what is new of it."""
        async with entry.looking:  # one after the other: nothing is told after an end
            await asyncio.to_thread(entry.read)
            progress = await entry.newest_progress()
            news = entry.news()
            if progress is not None:  # what a job said last counts before its end
                over = bool(news) and not isinstance(news[-1], Started)
                news.insert(len(news) - over, progress)
            self.tell(news)

    async def forget(self, job: str, generation: int) -> None:
        """Take in that an end was recorded; see `Executor.forget`."""
        async with self.one_at_a_time(job):
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(self.store.forget, job, generation):
                    self.entries.pop((job, generation), None)

    async def discard(self, job: str) -> bool:
        """Remove what is kept of a job that is over; whether it is; with the job's lock held.

        Raises
        ------
        ExecutorError
            If it cannot be removed.
        """
        with self._told():
            over = await asyncio.to_thread(self.store.discard, job)
        if over:
            self.drop(job)
        return over

    def has_logs(self, job: str, number: int) -> bool:
        """Whether a process of a generation wrote a log that is on this machine."""
        return bool(logs.names(self.store.generation(job, number).logs))

    def log(self, job: str, number: int, process: str, start: int | None, most: int) -> LogChunk:
        """Return a piece of a log that is on this machine; see `Executor.logs`.

        Raises
        ------
        KeyError
            If there is no such log.
        """
        generation = self.store.generation(job, number)
        complete = generation.state()["phase"] in OVER
        return piece(generation.logs, number, process, start, most, complete=complete)
