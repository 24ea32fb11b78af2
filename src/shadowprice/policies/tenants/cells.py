"""HiveD's cells: buddy allocation on servers, and the virtual private clusters built on it.

Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees" (OSDI 2020). A *cell*
is a set of places close to each other. A server of 2^k places is a cell of level k, which splits
into two *buddies* of level k - 1, and so on down to one place; a server of another size is the
cells of its binary digits. A tenant's *virtual private cluster* is a number of cells of each size.
They are virtual: bound to physical cells when used, unbound when idle, and the physical ones are
taken from the smallest that serves and merged with their buddies as soon as both are free. So a
cell of size ``2s`` is split only when every smaller one is in use, and as long as the virtual
clusters could all be cut out of the servers side by side, each can always have every cell it owns
(section 3.3 there; `tests/properties/test_cells.py` shows it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from shadowprice.core.errors import ShadowpriceError


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Adjacent places of one server.

    Parameters
    ----------
    server : int
        The server.
    offset : int
        Its first place.
    size : int
        Number of places, a power of two.
    """

    server: int
    offset: int
    size: int


def binary_digits(number: int) -> list[int]:
    """Return the powers of two that add up to a number, largest first."""
    return [1 << bit for bit in range(number.bit_length() - 1, -1, -1) if number >> bit & 1]


def cells_of(server: int, places: int) -> list[Cell]:
    """Return a server as its largest cells."""
    cells = []
    offset = 0
    for size in binary_digits(places):
        cells.append(Cell(server, offset, size))
        offset += size
    return cells


class Buddies:
    """Buddy allocation within some cells.

    Parameters
    ----------
    cells : iterable of Cell
        What there is to allocate.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._roots = frozenset(cells)
        self._free: dict[int, list[Cell]] = {}
        # The heaps forget lazily: what left them by merging is no longer in here.
        self._known: set[Cell] = set()
        for cell in sorted(self._roots):
            self._add(cell)

    @property
    def idle(self) -> bool:
        """Whether nothing is allocated."""
        return self._known == self._roots

    @property
    def free_places(self) -> int:
        """How many places are free."""
        return sum(cell.size for cell in self._known)

    def smallest(self, size: int) -> int:
        """Return the size of the smallest free cell that has room, 0 if there is none."""
        return min((cell.size for cell in self._known if cell.size >= size), default=0)

    def take(self, size: int) -> Cell | None:
        """Allocate a cell from the smallest free one that has room; ties to the first server."""
        have = self.smallest(size)
        if not have:
            return None
        heap = self._free[have]
        cell = heappop(heap)
        while cell not in self._known:
            cell = heappop(heap)
        self._known.remove(cell)
        while cell.size > size:
            half = cell.size // 2
            self._add(Cell(cell.server, cell.offset + half, half))
            cell = Cell(cell.server, cell.offset, half)
        return cell

    def give(self, cell: Cell) -> None:
        """Return a cell and merge it with its buddies."""
        while cell not in self._roots:
            buddy = self._buddy(cell)
            if buddy not in self._known:
                break
            self._known.remove(buddy)
            cell = Cell(cell.server, min(cell.offset, buddy.offset), 2 * cell.size)
        self._add(cell)

    def _add(self, cell: Cell) -> None:
        self._known.add(cell)
        heappush(self._free.setdefault(cell.size, []), cell)

    def _buddy(self, cell: Cell) -> Cell:
        root = next(
            root
            for root in self._roots
            if root.server == cell.server and root.offset <= cell.offset < root.offset + root.size
        )
        offset = root.offset + ((cell.offset - root.offset) ^ cell.size)
        return Cell(cell.server, offset, cell.size)


def cut(places: Sequence[int], shares: Sequence[int]) -> list[Counter[int]]:
    """Give every tenant cells, as large as its share allows, that can stand side by side.

    Parameters
    ----------
    places : sequence of int
        Places of each server.
    shares : sequence of int
        Places of each tenant; together, no more than there are.

    Returns
    -------
    list of Counter
        Cells of each tenant by size.

    Raises
    ------
    ShadowpriceError
        If the shares are more than the servers hold.
    """
    if sum(shares) > sum(places):
        raise ShadowpriceError("the tenants' shares are more than the servers hold")
    physical = Buddies(
        cell for server, count in enumerate(places) for cell in cells_of(server, count)
    )
    owned: list[Counter[int]] = [Counter() for _ in shares]
    largest = 1 << (max(places, default=1).bit_length() - 1) if any(places) else 1
    left = list(shares)
    # Large cells first, so that small ones fill what the large left over.
    size = largest
    while size:
        for tenant in range(len(shares)):
            while left[tenant] >= size and physical.take(size) is not None:
                owned[tenant][size] += 1
                left[tenant] -= size
        size //= 2
    return owned


@dataclass(slots=True)
class _Bound:
    """A virtual cell with the physical one behind it, and what of it is in use."""

    cell: Cell
    inside: Buddies


class VirtualClusters:
    """The virtual private clusters of all tenants on one set of servers.

    Parameters
    ----------
    places : sequence of int
        Places of each server.
    owned : sequence of mapping of int to int
        Cells of each tenant by size, see `cut`.
    """

    def __init__(self, places: Sequence[int], owned: Sequence[Mapping[int, int]]) -> None:
        self._physical = Buddies(
            cell for server, count in enumerate(places) for cell in cells_of(server, count)
        )
        self._unbound = [Counter(cells) for cells in owned]
        self._bound: list[list[_Bound]] = [[] for _ in owned]

    def take(self, tenant: int, workers: int, largest: int) -> list[Cell] | None:
        """Allocate the cells of a gang from a tenant's own.

        The gang asks for cells of at most ``largest`` places, largest first: whole servers, then
        the binary digits of the rest. A cell that the tenant has only in pieces is asked for as
        its two halves (affinity is kept as far as the tenant's own cells carry it).

        Returns
        -------
        list of Cell or None
            None if the tenant's own idle places do not suffice; nothing is taken then.
        """
        wanted = [largest] * (workers // largest) + binary_digits(workers % largest)
        taken: list[Cell] = []
        while wanted:
            size = wanted.pop(0)
            cell = self._take_one(tenant, size)
            if cell is not None:
                taken.append(cell)
            elif size > 1:
                wanted[:0] = [size // 2, size // 2]
            else:
                for mistaken in reversed(taken):
                    self.give(tenant, mistaken)
                return None
        return taken

    def give(self, tenant: int, cell: Cell) -> None:
        """Return a cell; a virtual cell that falls idle is unbound."""
        bound = next(
            each
            for each in self._bound[tenant]
            if each.cell.server == cell.server
            and each.cell.offset <= cell.offset < each.cell.offset + each.cell.size
        )
        bound.inside.give(cell)
        if bound.inside.idle:
            self._bound[tenant].remove(bound)
            self._unbound[tenant][bound.cell.size] += 1
            self._physical.give(bound.cell)

    def idle_places(self, tenant: int) -> int:
        """Return how many places of its own a tenant has left."""
        unbound = sum(size * count for size, count in self._unbound[tenant].items())
        return unbound + sum(bound.inside.free_places for bound in self._bound[tenant])

    def _take_one(self, tenant: int, size: int) -> Cell | None:
        # The smallest cell that serves, bound ones before unbound ones of the same size.
        partly = [(bound.inside.smallest(size), at) for at, bound in enumerate(self._bound[tenant])]
        partly = [(have, at) for have, at in partly if have]
        whole = [cell for cell, count in self._unbound[tenant].items() if count and cell >= size]
        if partly and (not whole or min(partly)[0] <= min(whole)):
            return self._bound[tenant][min(partly)[1]].inside.take(size)
        if not whole:
            return None
        cell = self._physical.take(min(whole))
        if cell is None:
            raise ShadowpriceError(
                f"tenant {tenant} owns a cell of {min(whole)} places that the servers cannot give"
            )
        self._unbound[tenant][cell.size] -= 1
        bound = _Bound(cell, Buddies([cell]))
        self._bound[tenant].append(bound)
        return bound.inside.take(size)
