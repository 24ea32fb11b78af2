"""Round-robin placement, without optimisation."""

from __future__ import annotations


class Table:
    """Servers with free capacity, and one cursor each for workers and parameter servers."""

    def __init__(self, free: list[list[int]], hosts: list[tuple[bool, bool]]) -> None:
        self.free = free
        self.hosts = hosts
        self.cursors = [0, 0]

    def deal(self, demand: list[int], count: int, kind: int) -> dict[int, int] | None:
        """Place items of a kind (0 workers, 1 parameter servers); move that kind's cursor."""
        before, cursor = [list(row) for row in self.free], self.cursors[kind]
        given: dict[int, int] = {}
        servers = len(self.free)
        for _ in range(count):
            for step in range(servers):
                at = (cursor + step) % servers
                row = self.free[at]
                if self.hosts[at][kind] and all(
                    need == 0 or have >= need for have, need in zip(row, demand, strict=True)
                ):
                    self.free[at] = [have - need for have, need in zip(row, demand, strict=True)]
                    given[at] = given.get(at, 0) + 1
                    cursor = (at + 1) % servers
                    break
            else:
                self.free = before
                return None
        self.cursors[kind] = cursor
        return given

    def place(
        self, worker: list[int], ps: list[int], workers: int, servers: int
    ) -> list[tuple[int, int, int]]:
        """Place workers then parameter servers, or the other way round; [] if they don't fit."""
        before, cursors = [list(row) for row in self.free], list(self.cursors)
        orders = [(0, 1), (1, 0)] if servers else [(0, 1)]
        for order in orders:
            given: dict[int, dict[int, int] | None] = {}
            for kind in order:
                demand, count = (worker, workers) if kind == 0 else (ps, servers)
                given[kind] = self.deal(demand, count, kind)
                if given[kind] is None:
                    break
            else:
                on_workers, on_ps = given[0] or {}, given[1] or {}
                return [
                    (at, on_workers.get(at, 0), on_ps.get(at, 0))
                    for at in sorted({*on_workers, *on_ps})
                ]
            self.free, self.cursors = [list(row) for row in before], list(cursors)
        return []
