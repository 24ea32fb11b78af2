"""Equal servers of a slot as groups, updated slot by slot.

Servers of one capacity with the same reservations have the same price and free capacity. So a
pool's slots are groups with counts. Slots without reservations share one grouping, and so do
neighbours with equal reservations. A reservation or a release refreshes only its own slots, and
computes only prices that changed.
"""

from typing import NamedTuple

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import allocation_free, inlined, kernel
from shadowprice.kernels.prices.exponential import UNLIMITED, exponential_price


class Groups(NamedTuple):
    """Groups of equal servers of one pool over a horizon.

    Attributes
    ----------
    row_of : int64[T]
        Grouping of each slot; row 0 is that of slots without reservations, and slots with equal
        reservations may share any other.
    groups : int64[Q]
        Number of groups in each row; entries beyond it are meaningless.
    price : float64[Q + 1, R, S]
        Price of a share of 1 of each resource, by group; the last row is scratch space.
    free : int64[Q + 1, R, S]
        Free capacity of each server of the group, or ``UNLIMITED``; the same.
    members : int64[Q, S]
        Servers in each group; 0 for lost servers, which host nothing.
    group_of : int64[Q, S]
        Group of each server. Groups are numbered by their lowest server.
    """

    row_of: Integers
    groups: Integers
    price: Floats
    free: Integers
    members: Integers
    group_of: Integers


@inlined
def group_servers(used: Integers, kind: Integers) -> tuple[Integers, Integers, Integers]:
    """Group servers of the same ``kind`` (S,), for equal capacity, with the same reservations.

    ``used`` (S, R) are the reservations in one slot. Returns the group of each server (S,), in
    order of first appearance, and the lowest server and number of servers of each group (G,).
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


class Rows(NamedTuple):
    """Users and groups of the rows of `Groups`, and the known version of each slot."""

    slot_counts: Integers  # number of slots on each row, without row 0, shape (Q,)
    spare: Integers  # stack of rows without slots, shape (T,)
    spare_count: Integers  # height of the stack, shape (1,)
    # Of each group; the last row is scratch space.
    first: Integers  # lowest server, shape (Q + 1, S)
    size: Integers  # number of servers, lost or not, shape (Q + 1, S)
    kind: Integers  # kind of its servers, shape (Q + 1, S)
    used: Integers  # reservations on each of its servers, shape (Q + 1, S, R)
    versions: Integers  # version of each slot's reservations that its row shows, shape (T,)


@inlined
def fill_row(
    row: int,
    old: int,
    used: Integers,
    kind: Integers,
    capacity: Integers,
    ln_low: Floats,
    ln_high: Floats,
    groups: Groups,
    rows: Rows,
) -> None:
    """Group and price one slot into ``row``, reusing prices of row ``old``.

    ``old`` may equal ``row``, and is -1 for none. Other parameters are those of `Groups`,
    `group_servers` and `prices.exponential.exponential_prices`; lost servers have negative kinds.
    """
    price, free, group_of = groups.price, groups.free, groups.group_of
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
            # A server's capacity is fixed, so equal free capacity means an equal price.
            if old >= 0 and free[old, r, group_of[old, s]] == room:
                new_price[r, g] = price[old, r, group_of[old, s]]
            else:
                new_price[r, g] = exponential_price(used[s, r], c, ln_low[r], ln_high[r])
    groups.groups[row] = len(first)
    for g in range(len(first)):
        s = first[g]
        rows.first[row, g] = s
        rows.size[row, g] = size[g]
        rows.kind[row, g] = kind[s]
        groups.members[row, g] = size[g] if kind[s] >= 0 else 0
        for r in range(resources):
            price[row, r, g] = new_price[r, g]
            free[row, r, g] = new_free[r, g]
            rows.used[row, g, r] = used[s, r]
    for s in range(len(member)):
        group_of[row, s] = member[s]


@inlined
def _release_row(row: int, rows: Rows) -> None:
    """Release a slot's row; without slots it becomes spare."""
    if row > 0:
        rows.slot_counts[row] -= 1
        if rows.slot_counts[row] == 0:
            rows.spare[rows.spare_count[0]] = row
            rows.spare_count[0] += 1


@allocation_free
def roll_rows(steps: int, groups: Groups, rows: Rows) -> None:
    """Drop the first slots of the horizon and append as many without reservations."""
    slots = len(groups.row_of)
    steps = min(steps, slots)
    for t in range(steps):
        _release_row(groups.row_of[t], rows)
    for t in range(slots - steps):
        groups.row_of[t] = groups.row_of[t + steps]
        rows.versions[t] = rows.versions[t + steps]
    for t in range(slots - steps, slots):
        groups.row_of[t] = 0
        rows.versions[t] = 0


class Scratch(NamedTuple):
    """Scratch space of one slot: allocating it for each slot takes longer than the rest."""

    used: Integers  # reservations, shape (S, R)
    server: Integers  # servers that change their group, ascending, shape (S,)
    group: Integers  # new group of each, before groups are numbered again, shape (S,)
    number: Integers  # new number of each group, shape (S,)


@allocation_free
def find_changed(
    row: int, used: Integers, kind: Integers, groups: Groups, rows: Rows, scratch: Scratch
) -> int:
    """Find the servers whose kind or reservations differ from what a row shows; count them.

    ``used`` and ``kind`` are those of `fill_row`, and ``scratch.server`` is written.
    """
    count = 0
    for s in range(len(kind)):
        g = groups.group_of[row, s]
        differs = rows.kind[row, g] != kind[s]
        for r in range(used.shape[1]):
            differs = differs or rows.used[row, g, r] != used[s, r]
        if differs:
            scratch.server[count] = s
            count += 1
    return count


@allocation_free
def move_servers(
    row: int,
    old: int,
    used: Integers,
    kind: Integers,
    capacity: Integers,
    ln_low: Floats,
    ln_high: Floats,
    count: int,
    groups: Groups,
    rows: Rows,
    scratch: Scratch,
) -> None:
    """Write row ``old`` with ``count`` changed servers to ``row``: what `fill_row` would write.

    The time grows with the groups and the changes, but for two loops over ``group_of``. ``old`` may
    equal ``row``. Other parameters are those of `find_changed` and `fill_row`.
    """
    resources = capacity.shape[1]
    scratch_row = len(rows.size) - 1
    size = groups.groups[old]
    for g in range(size):
        rows.size[scratch_row, g] = rows.size[old, g]
        _copy_group(old, g, scratch_row, g, groups, rows)
    for n in range(count):
        s = scratch.server[n]
        target = size
        for g in range(size):
            same = rows.kind[scratch_row, g] == kind[s]
            for r in range(resources):
                same = same and rows.used[scratch_row, g, r] == used[s, r]
            if same:
                target = g
                break
        if target == size:
            size += 1
            rows.size[scratch_row, target] = 0
            rows.kind[scratch_row, target] = kind[s]
            for r in range(resources):
                c = capacity[s, r]
                amount = used[s, r]
                rows.used[scratch_row, target, r] = amount
                groups.free[scratch_row, r, target] = c - amount if c < UNLIMITED else c
                price = exponential_price(amount, c, ln_low[r], ln_high[r])
                groups.price[scratch_row, r, target] = price
        scratch.group[n] = target
        rows.size[scratch_row, target] += 1
        rows.size[scratch_row, groups.group_of[old, s]] -= 1
    for g in range(size):
        scratch.number[g] = -1
    n = 0
    number = 0
    for s in range(len(kind)):
        g = groups.group_of[old, s]
        if n < count and scratch.server[n] == s:
            g = scratch.group[n]
            n += 1
        if scratch.number[g] < 0:
            scratch.number[g] = number
            rows.first[row, number] = s
            number += 1
        groups.group_of[row, s] = scratch.number[g]
    groups.groups[row] = number
    for g in range(size):
        new_number = scratch.number[g]
        if new_number >= 0:  # it has servers
            _copy_group(scratch_row, g, row, new_number, groups, rows)
            rows.size[row, new_number] = rows.size[scratch_row, g]
            groups.members[row, new_number] = (
                rows.size[row, new_number] if rows.kind[row, new_number] >= 0 else 0
            )


@inlined
def _copy_group(row: int, g: int, target: int, to: int, groups: Groups, rows: Rows) -> None:
    """Copy what servers of a group have in common."""
    rows.kind[target, to] = rows.kind[row, g]
    for r in range(rows.used.shape[2]):
        rows.used[target, to, r] = rows.used[row, g, r]
        groups.free[target, r, to] = groups.free[row, r, g]
        groups.price[target, r, to] = groups.price[row, r, g]


@inlined
def set_slot(
    slot: int,
    used: Integers,
    kind: Integers,
    capacity: Integers,
    ln_low: Floats,
    ln_high: Floats,
    groups: Groups,
    rows: Rows,
    scratch: Scratch,
) -> None:
    """Assign a slot its own row, which shows ``used``, int64[S, R]."""
    old = groups.row_of[slot]
    row = old
    if old == 0 or rows.slot_counts[old] > 1:
        if old > 0:
            rows.slot_counts[old] -= 1
        rows.spare_count[0] -= 1
        row = rows.spare[rows.spare_count[0]]
        rows.slot_counts[row] = 1
        groups.row_of[slot] = row
    count = find_changed(old, used, kind, groups, rows, scratch)
    # With many changes, grouping all servers is faster, and the scratch row may be too short.
    if 2 * count * groups.groups[old] <= len(kind):
        move_servers(row, old, used, kind, capacity, ln_low, ln_high, count, groups, rows, scratch)
    else:
        fill_row(row, old, used, kind, capacity, ln_low, ln_high, groups, rows)


@allocation_free
def reprice_rows(
    capacity: Integers, ln_low: Floats, ln_high: Floats, groups: Groups, rows: Rows
) -> None:
    """Compute all prices of the rows in use again, with other constants."""
    for row in range(len(groups.groups)):
        if row > 0 and rows.slot_counts[row] == 0:
            continue
        for g in range(groups.groups[row]):
            for r in range(capacity.shape[1]):
                # The price of an unlimited resource doesn't depend on its use.
                c = capacity[rows.first[row, g], r]
                used = c - groups.free[row, r, g]
                groups.price[row, r, g] = exponential_price(used, c, ln_low[r], ln_high[r])


@allocation_free
def equals_slot_before(t: int, used: Integers, servers: Integers, out: Flags) -> bool:
    """Return whether a slot has the reservations of the slot before, except on lost servers.

    Parameters are those of `follow_slots`.
    """
    for s in range(len(servers)):
        differs = False
        for r in range(used.shape[2]):
            differs = differs or used[t, servers[s], r] != used[t - 1, servers[s], r]
        if differs and not out[s]:
            return False
    return True


@allocation_free
def read_slot(
    t: int, used: Integers, servers: Integers, out: Flags, full: Integers, reservations: Integers
) -> bool:
    """Write a slot's reservations to ``reservations``, int64[S, R]; return whether there are any.

    Other parameters are those of `follow_slots`.
    """
    for s in range(len(reservations)):
        for r in range(reservations.shape[1]):
            reservations[s, r] = full[s, r] if out[s] else used[t, servers[s], r]
    for s in range(len(reservations)):
        for r in range(reservations.shape[1]):
            if reservations[s, r] != 0 and not out[s]:
                return True
    return False


@kernel
def follow_slots(
    used: Integers,
    versions: Integers,
    servers: Integers,
    out: Flags,
    full: Integers,
    kind: Integers,
    capacity: Integers,
    ln_low: Floats,
    ln_high: Floats,
    groups: Groups,
    rows: Rows,
    scratch: Scratch,
) -> None:
    """Update the rows of all slots whose version changed.

    ``used`` (slots, all servers, resources): reservations; ``versions`` (slots,): theirs.
    ``servers`` (servers,): the pool's servers among all. ``out`` (servers,): lost servers, which
    count as full. ``full`` (servers, resources): usage of a full server. The others are as in
    `set_slot`.
    """
    reservations = scratch.used
    for t in range(len(versions)):
        if rows.versions[t] == versions[t]:
            continue
        rows.versions[t] = versions[t]
        equals_previous = t > 0 and equals_slot_before(t, used, servers, out)
        if equals_previous or not read_slot(t, used, servers, out, full, reservations):
            row = groups.row_of[t - 1] if equals_previous else 0
            if row != groups.row_of[t]:
                _release_row(groups.row_of[t], rows)
                groups.row_of[t] = row
                if row > 0:
                    rows.slot_counts[row] += 1
            continue
        set_slot(t, reservations, kind, capacity, ln_low, ln_high, groups, rows, scratch)


class SlotGroups:
    """The groups of one pool of servers over a rolling horizon.

    Parameters
    ----------
    capacity : int64[S, R]
        Capacity of each server; ``UNLIMITED`` for a resource that never binds.
    slots : int
        Length of the horizon, which starts empty.
    ln_low, ln_high : float64[R]
        Logarithms of the price of a share of 1 when unused and when full.
    servers : int64[S], optional
        Number of each server in the arrays of `follow`; by default its position.
    """

    def __init__(
        self,
        capacity: Integers,
        slots: int,
        ln_low: Floats,
        ln_high: Floats,
        servers: Integers | None = None,
    ) -> None:
        self._capacity = np.ascontiguousarray(capacity, dtype=np.int64)
        pool, resources = self._capacity.shape
        _, kind = np.unique(self._capacity, axis=0, return_inverse=True)
        self._kind = self._kinds = np.ascontiguousarray(kind.reshape(-1), dtype=np.int64)
        self._servers = np.arange(pool) if servers is None else np.array(servers, dtype=np.int64)
        self._out = np.zeros(pool, dtype=np.bool_)
        self._full = np.where(self._capacity < UNLIMITED, self._capacity, 0)
        # Most rows are never written, so their memory is never backed by pages.
        count = slots + 1
        self._groups = Groups(
            row_of=np.zeros(slots, np.int64),
            groups=np.zeros(count, np.int64),
            price=np.empty((count + 1, resources, pool)),
            free=np.empty((count + 1, resources, pool), np.int64),
            members=np.empty((count, pool), np.int64),
            group_of=np.empty((count, pool), np.int64),
        )
        self._rows = Rows(
            slot_counts=np.zeros(count, np.int64),
            spare=np.arange(slots, 0, -1),
            spare_count=np.array([slots]),
            first=np.empty((count + 1, pool), np.int64),
            size=np.empty((count + 1, pool), np.int64),
            kind=np.empty((count + 1, pool), np.int64),
            used=np.empty((count + 1, pool, resources), np.int64),
            versions=np.zeros(slots, np.int64),
        )
        self._scratch = Scratch(
            np.empty((pool, resources), np.int64), *(np.empty(pool, np.int64) for _ in range(3))
        )
        self._ln_low = np.ascontiguousarray(ln_low, dtype=np.float64)
        self._ln_high = np.ascontiguousarray(ln_high, dtype=np.float64)
        self._fill_empty()

    @property
    def groups(self) -> Groups:
        """The arrays that kernels read; valid until the next change."""
        return self._groups

    def set_prices(self, ln_low: Floats, ln_high: Floats) -> None:
        """Set price constants, as in the constructor, and compute all prices again."""
        self._ln_low = np.ascontiguousarray(ln_low, dtype=np.float64)
        self._ln_high = np.ascontiguousarray(ln_high, dtype=np.float64)
        reprice_rows(self._capacity, self._ln_low, self._ln_high, self._groups, self._rows)

    def lose(self, out: Flags) -> None:
        """Set the lost servers, bool[S]; every slot then needs `follow`."""
        self._out = np.ascontiguousarray(out)
        self._kind = np.where(out, -1 - self._kinds, self._kinds)
        self._fill_empty()

    def follow(self, used: Integers, versions: Integers) -> None:
        """Update all changed slots.

        ``used`` (slots, all servers, resources) are the reservations, and ``versions`` (slots,)
        theirs: 0 for a slot that never had any.
        """
        follow_slots(
            used, versions, self._servers, self._out, self._full, self._kind, self._capacity,
            self._ln_low, self._ln_high, self._groups, self._rows, self._scratch,
        )  # fmt: skip

    def roll(self, slots: int) -> None:
        """Drop the first ``slots`` slots of the horizon and append as many empty ones."""
        roll_rows(slots, self._groups, self._rows)

    def _fill_empty(self) -> None:
        """Fill row 0 with a slot without reservations."""
        used = np.where(self._out[:, None], self._full, 0)
        fill_row(
            0, -1, used, self._kind, self._capacity, self._ln_low, self._ln_high, self._groups,
            self._rows,
        )  # fmt: skip
