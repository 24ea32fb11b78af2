"""Looks at what jobs report by file, asked for by somebody who may not wait until they are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from shadowprice.executors.contract import Progressed, Report


class Looks:
    """What one look finds, no other finds again: so nobody but its end ends it.

    Parameters
    ----------
    tell : callable
        Tells what a look finds that nobody waits for any more.
    """

    def __init__(self, tell: Callable[[Iterable[Report]], None]) -> None:
        self._tell = tell
        self._under_way: set[asyncio.Task[Sequence[Progressed]]] = set()

    @property
    def under_way(self) -> bool:
        """Whether one is not over yet."""
        return bool(self._under_way)

    async def wait_for(
        self, look: Coroutine[Any, Any, Sequence[Progressed]]
    ) -> Sequence[Progressed]:
        """Make a look, and return what it finds; it is made to its end though this is cancelled."""
        looking = asyncio.create_task(look)
        self._under_way.add(looking)
        looking.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(looking)
        except asyncio.CancelledError:
            looking.add_done_callback(self._tell_late)
            raise

    def _tell_late(self, looked: asyncio.Task[Sequence[Progressed]]) -> None:
        if not looked.cancelled() and looked.exception() is None:
            self._tell(looked.result())

    async def end(self) -> None:
        """End all that are under way."""
        looks = tuple(self._under_way)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
