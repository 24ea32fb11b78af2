"""HiveD's cells: buddy allocation of units on servers, and virtual private clusters of cells.

Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees" (OSDI 2020). A *cell*
is a set of adjacent capacity units of one server. A server of 2^k units is a cell of level k. It
splits into two *buddies* of level k - 1, and so on down to one unit. A server of another size
consists of the cells of its binary digits.

A tenant's *virtual private cluster* is a number of cells of each size. These cells are virtual:
they are bound to physical cells while in use and unbound while idle. A physical cell is cut from
the smallest free cell that is large enough, and merged with its buddy as soon as both are free. So
a cell is only split if no smaller free cell is large enough. If all virtual clusters
can be cut out of the servers side by side, each tenant can always get every cell that it owns
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
    """Adjacent capacity units of one server."""

    server: int
    offset: int  # of its first unit
    size: int  # number of units, a power of two

    def contains(self, other: Cell) -> bool:
        """Return whether ``other``, a cell of the same server and at most this size, is inside."""
        return self.offset <= other.offset < self.offset + self.size


def binary_digits(number: int) -> list[int]:
    """Return the powers of two that sum to a number, largest first."""
    return [1 << bit for bit in range(number.bit_length() - 1, -1, -1) if number >> bit & 1]


def split_into_cells(server: int, units: int) -> list[Cell]:
    """Split a server into its largest cells."""
    cells = []
    offset = 0
    for size in binary_digits(units):
        cells.append(Cell(server, offset, size))
        offset += size
    return cells


class BuddyAllocator:
    """Buddy allocator for the units of some cells (roots), which are never merged."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._roots = frozenset(cells)
        self._roots_on: dict[int, list[Cell]] = {}  # by server
        for root in sorted(self._roots):
            self._roots_on.setdefault(root.server, []).append(root)
        self._heaps: dict[int, list[Cell]] = {}  # heaps of free cells, by size
        # Free cells. A heap can still have a cell that was merged; such cells are not in this set.
        self._free_cells: set[Cell] = set()
        for cell in sorted(self._roots):
            self._add(cell)

    @property
    def idle(self) -> bool:
        """Whether nothing is allocated."""
        return self._free_cells == self._roots

    def smallest(self, size: int) -> int:
        """Return the size of the smallest free cell of at least ``size`` units, 0 if none."""
        for available in sorted(self._heaps):
            if available >= size:
                heap = self._heaps[available]
                while heap and heap[0] not in self._free_cells:
                    heappop(heap)
                if heap:
                    return available
        return 0

    def allocate(self, size: int) -> Cell | None:
        """Allocate a cell from the smallest free cell that is large enough, on the first server."""
        available = self.smallest(size)
        if not available:
            return None
        cell = heappop(self._heaps[available])
        self._free_cells.remove(cell)
        while cell.size > size:
            half = cell.size // 2
            self._add(Cell(cell.server, cell.offset + half, half))
            cell = Cell(cell.server, cell.offset, half)
        return cell

    def release(self, cell: Cell) -> None:
        """Release a cell, and merge it with its buddy as long as that is free."""
        while cell not in self._roots:
            buddy = self._buddy(cell)
            if buddy not in self._free_cells:
                break
            self._free_cells.remove(buddy)
            cell = Cell(cell.server, min(cell.offset, buddy.offset), 2 * cell.size)
        self._add(cell)

    def _add(self, cell: Cell) -> None:
        self._free_cells.add(cell)
        heappush(self._heaps.setdefault(cell.size, []), cell)

    def _buddy(self, cell: Cell) -> Cell:
        root = next(root for root in self._roots_on[cell.server] if root.contains(cell))
        offset = root.offset + ((cell.offset - root.offset) ^ cell.size)
        return Cell(cell.server, offset, cell.size)


def assign_cells(units: Sequence[int], shares: Sequence[int]) -> list[list[Cell]]:
    """Return the cells of every tenant: as large as its share and the servers allow."""
    if sum(shares) > sum(units):
        raise ShadowpriceError("the tenants' shares are more than the servers hold")
    physical = BuddyAllocator(_largest_cells(units))
    owned: list[list[Cell]] = [[] for _ in shares]
    remaining = list(shares)
    # Large cells first, so that small cells fill the gaps.
    size = 1 << max(units, default=0).bit_length() >> 1
    while size:
        for tenant in range(len(shares)):
            while remaining[tenant] >= size:
                cell = physical.allocate(size)
                if cell is None:
                    break
                owned[tenant].append(cell)
                remaining[tenant] -= size
        size //= 2
    return owned


def _largest_cells(units: Sequence[int]) -> Iterable[Cell]:
    return (cell for server, count in enumerate(units) for cell in split_into_cells(server, count))


@dataclass(slots=True)
class _Bound:
    """A virtual cell that is bound to a physical cell."""

    number: int  # number of the binding; a smaller one is older
    cell: Cell  # the physical cell
    inside: BuddyAllocator  # allocations within the cell


class VirtualClusters:
    """The virtual private clusters of all tenants.

    ``units`` are those of each server; ``owned`` are each tenant's numbers of cells by size.
    """

    def __init__(self, units: Sequence[int], owned: Sequence[Mapping[int, int]]) -> None:
        self._physical = BuddyAllocator(_largest_cells(units))
        self._unbound = [Counter(cells) for cells in owned]  # number of idle cells, by size
        self._bound: list[dict[int, list[_Bound]]] = [{} for _ in owned]  # by server
        # Bound cells with free units, by number, because most bound cells are full.
        self._partial: list[dict[int, _Bound]] = [{} for _ in owned]
        self._bindings = 0

    def allocate(self, tenant: int, workers: int, largest: int) -> list[Cell] | None:
        """Allocate cells for a gang's workers, or return None if the tenant has too few idle ones.

        The gang requests cells of ``largest`` units, then the binary digits of the rest. If no cell
        of a size is free, its two halves are requested instead.
        """
        sizes = [largest] * (workers // largest) + binary_digits(workers % largest)
        taken: list[Cell] = []
        while sizes:
            size = sizes.pop(0)
            cell = self._take_cell(tenant, size)
            if cell is not None:
                taken.append(cell)
            elif size > 1:
                sizes[:0] = [size // 2, size // 2]
            else:
                for partial in reversed(taken):
                    self.release(tenant, partial)
                return None
        return taken

    def release(self, tenant: int, cell: Cell) -> None:
        """Release a cell, and unbind the virtual cell around it if that becomes idle."""
        on_server = self._bound[tenant][cell.server]
        bound = next(candidate for candidate in on_server if candidate.cell.contains(cell))
        bound.inside.release(cell)
        if not bound.inside.idle:
            self._partial[tenant][bound.number] = bound
            return
        on_server.remove(bound)
        self._partial[tenant].pop(bound.number, None)
        self._unbound[tenant][bound.cell.size] += 1
        self._physical.release(bound.cell)

    def _take_cell(self, tenant: int, size: int) -> Cell | None:
        # Prefer the smallest cell that is large enough, then bound cells, then the oldest binding.
        partial = self._partial[tenant]
        fitting = [
            (free, number)
            for number, bound in partial.items()
            if (free := bound.inside.smallest(size))
        ]
        unbound = [cell for cell, count in self._unbound[tenant].items() if count and cell >= size]
        if fitting and (not unbound or min(fitting)[0] <= min(unbound)):
            return self._take_inside(tenant, partial[min(fitting)[1]], size)
        if not unbound:
            return None
        cell = self._physical.allocate(min(unbound))
        if cell is None:
            raise ShadowpriceError(
                f"tenant {tenant} owns a cell of {min(unbound)} places that the servers cannot give"
            )
        self._unbound[tenant][cell.size] -= 1
        bound = _Bound(self._bindings, cell, BuddyAllocator([cell]))
        self._bindings += 1
        self._bound[tenant].setdefault(cell.server, []).append(bound)
        return self._take_inside(tenant, bound, size)

    def _take_inside(self, tenant: int, bound: _Bound, size: int) -> Cell | None:
        cell = bound.inside.allocate(size)
        if bound.inside.smallest(1):
            self._partial[tenant][bound.number] = bound
        else:
            self._partial[tenant].pop(bound.number, None)
        return cell
