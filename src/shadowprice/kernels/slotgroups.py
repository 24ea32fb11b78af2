"""Equal servers of a slot as groups, kept up to date slot by slot.

Servers of one capacity with the same reservations have the same price and the same room. A pool's
slots are therefore seen as groups with counts. Slots that nothing was ever reserved in share one
grouping; a reservation or a release refreshes only the slots it touches, and only what changed is
priced anew.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.jit import kernel
from shadowprice.kernels.pricing import UNLIMITED, exponential_price

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Groups(NamedTuple):
    """Groups of equal servers of one pool over a horizon, as the kernels read them.

    Attributes
    ----------
    row_of : int64[T]
        Grouping of each slot; row 0 is that of slots with nothing reserved.
    groups : int64[Q]
        Number of groups in each row; entries beyond it mean nothing.
    price : float64[Q, R, S]
        Price of a share of 1 of each resource, by group.
    free : int64[Q, R, S]
        Amount free on each server of the group (``UNLIMITED`` stays so).
    members : int64[Q, S]
        Servers in each group.
    group_of : int64[Q, S]
        Group of each server. Groups are numbered by their lowest server.
    """

    row_of: Ints
    groups: Ints
    price: Floats
    free: Ints
    members: Ints
    group_of: Ints


@kernel
def group_servers(used: Ints, kind: Ints) -> tuple[Ints, Ints, Ints]:
    """Group servers of the same kind and the same reservations.

    Parameters
    ----------
    used : int64[S, R]
        Amounts reserved in one slot.
    kind : int64[S]
        Servers of equal capacity have equal kinds.

    Returns
    -------
    group_of : int64[S]
        Group of each server, numbered in order of first appearance.
    first, count : int64[G]
        Lowest server and number of servers of each group.
    """
    servers, resources = used.shape
    group_of = np.empty(servers, np.int64)
    first = np.empty(servers, np.int64)
    count = np.zeros(servers, np.int64)
    print_of = np.empty(servers)
    print_bits = print_of.view(np.int64)
    size = 16
    while size < 2 * servers:
        size *= 2
    table = np.full(size, -1, np.int64)
    groups = 0
    for s in range(servers):
        total = 0.7310585786300049 * (kind[s] + 1)
        for r in range(resources):
            total += used[s, r] * (0.5 + (0.6180339887498949 * (r + 1)) % 1.0)
        print_of[s] = total
        bits = print_bits[s]
        place = (bits ^ (bits >> 21) ^ (bits >> 43)) & (size - 1)
        while True:
            known = table[place]
            if known < 0:
                table[place] = groups
                first[groups] = s
                count[groups] = 1
                group_of[s] = groups
                groups += 1
                break
            other = first[known]
            if print_of[other] == total and kind[other] == kind[s]:
                same = True
                for r in range(resources):
                    if used[other, r] != used[s, r]:
                        same = False
                        break
                if same:
                    group_of[s] = known
                    count[known] += 1
                    break
            place = (place + 1) & (size - 1)
    return group_of, first[:groups].copy(), count[:groups].copy()


@kernel
def fill_row(
    row: int,
    old: int,
    used: Ints,
    kind: Ints,
    capacity: Ints,
    ln_low: Floats,
    ln_high: Floats,
    groups: Ints,
    price: Floats,
    free: Ints,
    count: Ints,
    group_of: Ints,
) -> None:
    """Group and price one slot into ``row``, taking from row ``old`` what did not change.

    ``old`` may equal ``row``, and is -1 where there is nothing to take over. Other parameters are
    those of `Groups`, `group_servers` and `pricing.exponential_prices`.
    """
    resources = capacity.shape[1]
    member, first, size = group_servers(used, kind)
    new_price = np.empty((resources, len(first)))
    new_free = np.empty((resources, len(first)), np.int64)
    for g in range(len(first)):
        s = first[g]
        for r in range(resources):
            c = capacity[s, r]
            room = c
            if c < UNLIMITED:
                room = c - used[s, r]
            new_free[r, g] = room
            # A server's capacity is fixed: the same room means the same price.
            if old >= 0 and free[old, r, group_of[old, s]] == room:
                new_price[r, g] = price[old, r, group_of[old, s]]
            else:
                new_price[r, g] = exponential_price(used[s, r], c, ln_low[r], ln_high[r])
    groups[row] = len(first)
    for r in range(resources):
        for g in range(len(first)):
            price[row, r, g] = new_price[r, g]
            free[row, r, g] = new_free[r, g]
    for g in range(len(first)):
        count[row, g] = size[g]
    for s in range(len(member)):
        group_of[row, s] = member[s]


class SlotGroups:
    """The groups of one pool of servers over a rolling horizon.

    Parameters
    ----------
    capacity : int64[S, R]
        Amounts of each server; ``UNLIMITED`` where a resource never binds.
    slots : int
        Length of the horizon, all of it empty at first.
    ln_low, ln_high : float64[R]
        Logarithms of the price of a share of 1 when nothing and when all is used.
    """

    def __init__(self, capacity: Ints, slots: int, ln_low: Floats, ln_high: Floats) -> None:
        self._capacity = np.ascontiguousarray(capacity, dtype=np.int64)
        servers, resources = self._capacity.shape
        _, kind = np.unique(self._capacity, axis=0, return_inverse=True)
        self._kind = np.ascontiguousarray(kind.reshape(-1), dtype=np.int64)
        # Rows are mostly never written: untouched memory is never backed by pages.
        rows = slots + 1
        self._groups = Groups(
            row_of=np.zeros(slots, np.int64),
            groups=np.zeros(rows, np.int64),
            price=np.empty((rows, resources, servers)),
            free=np.empty((rows, resources, servers), np.int64),
            members=np.empty((rows, servers), np.int64),
            group_of=np.empty((rows, servers), np.int64),
        )
        self._spare = list(range(slots, 0, -1))
        self._empty = np.zeros_like(self._capacity)
        self.set_prices(ln_low, ln_high, None)

    @property
    def groups(self) -> Groups:
        """The arrays that kernels read; valid until the next change."""
        return self._groups

    def set_prices(self, ln_low: Floats, ln_high: Floats, used: Ints | None) -> None:
        """Take new price constants and price every slot anew.

        Parameters
        ----------
        ln_low, ln_high : float64[R]
            As for the class.
        used : int64[T, S, R] or None
            Reservations of the horizon; None while nothing is reserved.
        """
        self._ln_low = np.ascontiguousarray(ln_low, dtype=np.float64)
        self._ln_high = np.ascontiguousarray(ln_high, dtype=np.float64)
        self._fill(0, -1, self._empty)
        if used is not None:
            for slot in range(len(self._groups.row_of)):
                row = int(self._groups.row_of[slot])
                if row > 0:
                    self._fill(row, -1, np.ascontiguousarray(used[slot]))

    def refresh(self, slot: int, used: Ints) -> None:
        """Follow a change of the reservations of one slot.

        Parameters
        ----------
        slot : int
            Slot of the horizon, 0 being its first.
        used : int64[S, R]
            Amounts now reserved in that slot.
        """
        row_of = self._groups.row_of
        row = int(row_of[slot])
        if not used.any():
            if row > 0:
                self._spare.append(row)
                row_of[slot] = 0
            return
        old = row
        if row == 0:
            row = self._spare.pop()
            row_of[slot] = row
        self._fill(row, old, np.ascontiguousarray(used, dtype=np.int64))

    def refresh_all(self, used: Ints, slots: Iterable[int] | None = None) -> None:
        """Follow a change of several slots (all, if not named) of ``used``, int64[T, S, R]."""
        for slot in range(len(self._groups.row_of)) if slots is None else slots:
            self.refresh(int(slot), used[slot])

    def roll(self, slots: int) -> None:
        """Drop the first ``slots`` slots of the horizon and append as many empty ones."""
        row_of = self._groups.row_of
        slots = min(slots, len(row_of))
        self._spare.extend(int(row) for row in row_of[:slots] if row > 0)
        row_of[:] = np.concatenate([row_of[slots:], np.zeros(slots, np.int64)])

    def _fill(self, row: int, old: int, used: Ints) -> None:
        groups = self._groups
        fill_row(
            row,
            old,
            used,
            self._kind,
            self._capacity,
            self._ln_low,
            self._ln_high,
            groups.groups,
            groups.price,
            groups.free,
            groups.members,
            groups.group_of,
        )
