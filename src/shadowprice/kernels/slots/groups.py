"""Equal servers of a slot as groups, updated slot by slot.

Servers of one capacity with the same reservations have the same price and free capacity. So a
pool's slots are groups with counts. A slot lists only its servers with reservations; all others of
a kind are one group. So time and memory grow with the kinds of servers and with the reservations,
not with the number of servers. Slots without reservations share one grouping, and so do neighbours
with equal reservations.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar, cast

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel
from shadowprice.kernels.prices.exponential import UNLIMITED, exponential_price
from shadowprice.kernels.slots.polygons import add_to_hash

Numbers = TypeVar("Numbers", Floats, Integers)

_MAX_LINEAR_SEARCHES = 8
"""Number of searches for a group above which hashing all groups is faster."""

FITS, MORE_GROUPS, MORE_SERVERS = constant(0), constant(1), constant(2)
"""Whether a slot fits into the arrays, or which of them are too short."""


class Kinds(NamedTuple):
    """Kinds of servers: a kind for each capacity, and another for lost servers of that capacity."""

    of: Integers  # kind of each server, shape (S,)
    member: Integers  # servers by kind, ascending in each, shape (S,)
    start: Integers  # first entry of each kind in ``member``, and the length, shape (K + 1,)
    capacity: Integers  # shape (K, R)
    used: Integers  # reservations of a server without any: a lost one counts as full, shape (K, R)
    is_lost: Flags  # shape (K,)


class Groups(NamedTuple):
    """Groups of equal servers of one pool over a horizon.

    Attributes
    ----------
    row_of : int64[T]
        Grouping of each slot; row 0 is that of slots without reservations, and slots with equal
        reservations may share any other.
    groups : int64[Q]
        Number of groups in each row; entries beyond it are meaningless. Groups are numbered by
        their lowest server.
    price : float64[Q, R, W]
        Price of a share of 1 of each resource, by group.
    free : int64[Q, R, W]
        Free capacity of each server of the group, or ``UNLIMITED``.
    members : int64[Q, W]
        Servers in each group; 0 for lost servers, which host nothing.
    kind : int64[Q, W]
        Kind of the servers of each group.
    reserved : int64[Q]
        Number of servers with reservations.
    reserved_server : int64[Q, X]
        The servers with reservations, ascending.
    reserved_group : int64[Q, X]
        Group of each of them.
    unreserved_group : int64[Q, K]
        Group of all other servers of each kind, -1 if there are none.
    kinds : Kinds
        The kinds of servers, the same in all slots.
    """

    row_of: Integers
    groups: Integers
    price: Floats
    free: Integers
    members: Integers
    kind: Integers
    reserved: Integers
    reserved_server: Integers
    reserved_group: Integers
    unreserved_group: Integers
    kinds: Kinds


class Rows(NamedTuple):
    """Users and reservations of the rows of `Groups`, and the known version of each slot."""

    slot_counts: Integers  # number of slots on each row, without row 0, shape (Q,)
    spare: Integers  # stack of rows without slots, shape (T,)
    spare_count: Integers  # height of the stack, shape (1,)
    size: Integers  # number of servers of each group, lost or not, shape (Q, W)
    used: Integers  # reservations on each server of a group, shape (Q, R, W)
    versions: Integers  # version of each slot's reservations that its row shows, shape (T,)


class Scratch(NamedTuple):
    """One slot's groups before they are numbered, and scratch space."""

    changed: Integers  # servers whose reservations changed, ascending, shape (S,)
    reserved_server: Integers  # servers with reservations, ascending, shape (S,)
    reserved_group: Integers  # group of each, shape (S,)
    unreserved_group: Integers  # as in `Groups`, possibly of an empty group, shape (K,)
    next: Integers  # place in `Kinds.member` of each kind's first server without any, shape (K,)
    by_first: Integers  # kinds by that server, shape (K,)
    # Of each group.
    kind: Integers  # shape (W,)
    size: Integers  # shape (W,)
    first: Integers  # lowest server, shape (W,)
    number: Integers  # in `Groups`, -1 for an empty group, shape (W,)
    order: Integers  # groups by number, shape (W,)
    used: Integers  # shape (R, W)
    free: Integers  # shape (R, W)
    price: Floats  # shape (R, W)
    table: Integers  # hash table of groups, at least twice as long, shape (power of 2,)


@inlined
def expand_groups(row: int, groups: Groups, group: Integers) -> None:
    """Write the group of each server in a row to ``group``, int64[S]."""
    kinds = groups.kinds
    for s in range(len(kinds.of)):
        group[s] = groups.unreserved_group[row, kinds.of[s]]
    for n in range(groups.reserved[row]):
        group[groups.reserved_server[row, n]] = groups.reserved_group[row, n]


@kernel
def find_groups(groups: Groups, row: Integers, server: Integers) -> Integers:
    """Return the group of each server in the row beside it."""
    found = np.empty(len(row), np.int64)
    for n in range(len(row)):
        q, s = row[n], server[n]
        low, high = 0, groups.reserved[q]
        while low < high:
            middle = (low + high) // 2
            if groups.reserved_server[q, middle] < s:
                low = middle + 1
            else:
                high = middle
        if low < groups.reserved[q] and groups.reserved_server[q, low] == s:
            found[n] = groups.reserved_group[q, low]
        else:
            found[n] = groups.unreserved_group[q, groups.kinds.of[s]]
    return found


@inlined
def _release_row(row: int, rows: Rows) -> None:
    """Release a slot's row; without slots it becomes spare."""
    if row > 0:
        rows.slot_counts[row] -= 1
        if rows.slot_counts[row] == 0:
            rows.spare[rows.spare_count[0]] = row
            rows.spare_count[0] += 1


@inlined
def _share_row(slot: int, row: int, groups: Groups, rows: Rows) -> None:
    """Assign a slot a row that shows its reservations."""
    if row != groups.row_of[slot]:
        _release_row(groups.row_of[slot], rows)
        groups.row_of[slot] = row
        if row > 0:
            rows.slot_counts[row] += 1


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


@allocation_free
def find_changed(
    t: int,
    row: int,
    candidates: Integers,
    start: int,
    end: int,
    used: Integers,
    servers: Integers,
    groups: Groups,
    rows: Rows,
    scratch: Scratch,
) -> int:
    """Find the candidates whose reservations differ from what a row shows; count them.

    ``scratch.changed`` is written; parameters are those of `follow_slots`.
    """
    count = 0
    place = 0
    reserved = groups.reserved[row]
    kinds = groups.kinds
    for n in range(start, end):
        s = candidates[n]
        if kinds.is_lost[kinds.of[s]]:
            continue
        while place < reserved and groups.reserved_server[row, place] < s:
            place += 1
        differs = False
        if place < reserved and groups.reserved_server[row, place] == s:
            g = groups.reserved_group[row, place]
            for r in range(used.shape[2]):
                differs = differs or used[t, servers[s], r] != rows.used[row, r, g]
        else:
            for r in range(used.shape[2]):
                differs = differs or used[t, servers[s], r] != 0
        if differs:
            scratch.changed[count] = s
            count += 1
    return count


@inlined
def _hash_group(g: int, scratch: Scratch) -> int:
    mixed: int = scratch.kind[g]
    for r in range(len(scratch.used)):
        mixed = add_to_hash(mixed, scratch.used[r, g])
    return mixed


@inlined
def _are_equal(g: int, other: int, scratch: Scratch) -> bool:
    same = bool(scratch.kind[g] == scratch.kind[other])
    for r in range(len(scratch.used)):
        same = same and bool(scratch.used[r, g] == scratch.used[r, other])
    return same


@allocation_free
def find_group(size: int, mask: int, scratch: Scratch) -> int:
    """Return the group equal to group ``size``, which is itself if there is no other.

    With a ``mask`` of the hash table, the table is searched and gets the group; with 0, all groups
    are compared.
    """
    if mask == 0:
        for g in range(size):
            if _are_equal(g, size, scratch):
                return g
        return size
    place = _hash_group(size, scratch) & mask
    while scratch.table[place] >= 0:
        known: int = scratch.table[place]
        if _are_equal(known, size, scratch):
            return known
        place = (place + 1) & mask
    scratch.table[place] = size
    return size


@inlined
def _price_group(
    g: int, kind: int, groups: Groups, ln_low: Floats, ln_high: Floats, scratch: Scratch
) -> None:
    """Compute the free capacity and the prices of a new group, whose ``used`` is known."""
    scratch.size[g] = 0
    for r in range(len(scratch.used)):
        capacity, used = groups.kinds.capacity[kind, r], scratch.used[r, g]
        scratch.free[r, g] = capacity - used if capacity < UNLIMITED else capacity
        scratch.price[r, g] = exponential_price(used, capacity, ln_low[r], ln_high[r])


@allocation_free
def regroup(
    t: int,
    old: int,
    count: int,
    used: Integers,
    servers: Integers,
    ln_low: Floats,
    ln_high: Floats,
    groups: Groups,
    rows: Rows,
    scratch: Scratch,
) -> tuple[int, int, int]:
    """Write row ``old`` with ``count`` changed servers to ``scratch``.

    Returns `FITS`, the number of groups, some of which may be empty, and the number of servers with
    reservations; or what is too short. Other parameters are those of `follow_slots`.
    """
    resources, width = scratch.used.shape
    kinds = groups.kinds
    size = groups.groups[old]
    for g in range(size):
        scratch.kind[g] = groups.kind[old, g]
        scratch.size[g] = rows.size[old, g]
    for r in range(resources):
        for g in range(size):
            scratch.used[r, g] = rows.used[old, r, g]
            scratch.free[r, g] = groups.free[old, r, g]
            scratch.price[r, g] = groups.price[old, r, g]
    for k in range(len(scratch.unreserved_group)):
        scratch.unreserved_group[k] = groups.unreserved_group[old, k]
    mask = 0
    if count > _MAX_LINEAR_SEARCHES:
        mask = 15
        while mask < 2 * min(size + count, width):
            mask = 2 * mask + 1
        for place in range(mask + 1):
            scratch.table[place] = -1
        for g in range(size):
            find_group(g, mask, scratch)
    reserved = groups.reserved[old]
    place = 0
    n = 0
    for c in range(count):
        s = scratch.changed[c]
        k = kinds.of[s]
        while place < reserved and groups.reserved_server[old, place] < s:
            scratch.reserved_server[n] = groups.reserved_server[old, place]
            scratch.reserved_group[n] = groups.reserved_group[old, place]
            place += 1
            n += 1
        if place < reserved and groups.reserved_server[old, place] == s:
            scratch.size[groups.reserved_group[old, place]] -= 1
            place += 1
        else:
            scratch.size[groups.unreserved_group[old, k]] -= 1
        if size == width:
            return MORE_GROUPS, 0, 0
        has_any = False
        for r in range(resources):
            has_any = has_any or used[t, servers[s], r] != 0
        if has_any:
            scratch.kind[size] = k
            for r in range(resources):
                scratch.used[r, size] = used[t, servers[s], r]
            target = find_group(size, mask, scratch)
            scratch.reserved_server[n] = s
            scratch.reserved_group[n] = target
            n += 1
        else:
            target = scratch.unreserved_group[k]
            if target < 0:
                target = size
                scratch.unreserved_group[k] = size
                scratch.kind[size] = k
                for r in range(resources):
                    scratch.used[r, size] = kinds.used[k, r]
        if target == size:
            _price_group(size, k, groups, ln_low, ln_high, scratch)
            size += 1
        scratch.size[target] += 1
    while place < reserved:
        scratch.reserved_server[n] = groups.reserved_server[old, place]
        scratch.reserved_group[n] = groups.reserved_group[old, place]
        place += 1
        n += 1
    if n > groups.reserved_server.shape[1]:
        return MORE_SERVERS, 0, 0
    return FITS, size, n


@allocation_free
def number_groups(size: int, reserved: int, kinds: Kinds, scratch: Scratch) -> int:
    """Assign numbers to the first ``size`` groups in ``scratch``; return how many get one.

    Groups are numbered by their lowest server; empty ones get -1. ``reserved`` is the number of
    servers with reservations.
    """
    for k in range(len(scratch.next)):
        scratch.next[k] = kinds.start[k]
    for g in range(size):
        scratch.number[g] = -1
    count = 0
    for n in range(reserved):
        s, g = scratch.reserved_server[n], scratch.reserved_group[n]
        if scratch.number[g] < 0:
            scratch.number[g] = 0
            scratch.first[g] = s
            scratch.order[count] = g
            count += 1
        # The reserved servers of a kind ascend, so this skips those before all others of it.
        if kinds.member[scratch.next[kinds.of[s]]] == s:
            scratch.next[kinds.of[s]] += 1
    unreserved = 0
    for k in range(len(scratch.next)):
        g = scratch.unreserved_group[k]
        if g < 0 or scratch.size[g] == 0:
            continue
        first = kinds.member[scratch.next[k]]
        scratch.first[g] = first
        place = unreserved
        while place > 0 and scratch.first[scratch.by_first[place - 1]] > first:
            scratch.by_first[place] = scratch.by_first[place - 1]
            place -= 1
        scratch.by_first[place] = g
        unreserved += 1
    # Merge both orders from their ends, in place.
    total = count + unreserved
    for number in range(total - 1, -1, -1):
        if unreserved == 0 or (
            count > 0
            and scratch.first[scratch.order[count - 1]]
            > scratch.first[scratch.by_first[unreserved - 1]]
        ):
            count -= 1
            g = scratch.order[count]
        else:
            unreserved -= 1
            g = scratch.by_first[unreserved]
        scratch.order[number] = g
        scratch.number[g] = number
    return total


@allocation_free
def equals_row(
    row: int, total: int, reserved: int, groups: Groups, rows: Rows, scratch: Scratch
) -> bool:
    """Return whether the numbered groups in ``scratch`` are those of a row."""
    if groups.groups[row] != total or groups.reserved[row] != reserved:
        return False
    for n in range(reserved):
        if (
            groups.reserved_server[row, n] != scratch.reserved_server[n]
            or groups.reserved_group[row, n] != scratch.number[scratch.reserved_group[n]]
        ):
            return False
    for number in range(total):
        g = scratch.order[number]
        for r in range(len(scratch.used)):
            if rows.used[row, r, number] != scratch.used[r, g]:
                return False
    return True


@allocation_free
def write_row(
    row: int, total: int, reserved: int, groups: Groups, rows: Rows, scratch: Scratch
) -> None:
    """Write the numbered groups in ``scratch`` to a row."""
    groups.groups[row] = total
    groups.reserved[row] = reserved
    for n in range(reserved):
        groups.reserved_server[row, n] = scratch.reserved_server[n]
        groups.reserved_group[row, n] = scratch.number[scratch.reserved_group[n]]
    for k in range(len(scratch.unreserved_group)):
        g = scratch.unreserved_group[k]
        groups.unreserved_group[row, k] = -1 if g < 0 else scratch.number[g]
    for number in range(total):
        g = scratch.order[number]
        groups.kind[row, number] = scratch.kind[g]
        rows.size[row, number] = scratch.size[g]
        groups.members[row, number] = scratch.size[g]
        if groups.kinds.is_lost[scratch.kind[g]]:
            groups.members[row, number] = 0
    for r in range(len(scratch.used)):
        for number in range(total):
            g = scratch.order[number]
            rows.used[row, r, number] = scratch.used[r, g]
            groups.free[row, r, number] = scratch.free[r, g]
            groups.price[row, r, number] = scratch.price[r, g]


@kernel
def fill_empty(
    ln_low: Floats, ln_high: Floats, groups: Groups, rows: Rows, scratch: Scratch
) -> None:
    """Fill row 0 with a slot without reservations."""
    kinds = groups.kinds
    size = 0
    for k in range(len(kinds.capacity)):
        scratch.unreserved_group[k] = -1
        if kinds.start[k] == kinds.start[k + 1]:
            continue
        scratch.unreserved_group[k] = size
        scratch.kind[size] = k
        for r in range(len(scratch.used)):
            scratch.used[r, size] = kinds.used[k, r]
        _price_group(size, k, groups, ln_low, ln_high, scratch)
        scratch.size[size] = kinds.start[k + 1] - kinds.start[k]
        size += 1
    write_row(0, number_groups(size, 0, kinds, scratch), 0, groups, rows, scratch)


@allocation_free
def reprice_rows(ln_low: Floats, ln_high: Floats, groups: Groups, rows: Rows) -> None:
    """Compute all prices of the rows in use again, with other constants."""
    for row in range(len(groups.groups)):
        if row > 0 and rows.slot_counts[row] == 0:
            continue
        for g in range(groups.groups[row]):
            for r in range(len(ln_low)):
                capacity = groups.kinds.capacity[groups.kind[row, g], r]
                groups.price[row, r, g] = exponential_price(
                    rows.used[row, r, g], capacity, ln_low[r], ln_high[r]
                )


@allocation_free
def changes_as_before(
    n: int,
    slots: Integers,
    start: Integers,
    end: Integers,
    candidates: Integers,
    used: Integers,
    servers: Integers,
    kinds: Kinds,
) -> bool:
    """Return whether the candidates of a slot are those of the slot before, and reserved alike.

    Parameters are those of `follow_slots`; ``n`` is the slot's place in ``slots``.
    """
    t, count = slots[n], end[n] - start[n]
    if slots[n - 1] != t - 1 or end[n - 1] - start[n - 1] != count:
        return False
    for c in range(count):
        s = candidates[start[n] + c]
        if candidates[start[n - 1] + c] != s:
            return False
        differs = False
        for r in range(used.shape[2]):
            differs = differs or used[t, servers[s], r] != used[t - 1, servers[s], r]
        if differs and not kinds.is_lost[kinds.of[s]]:
            return False
    return True


@kernel
def follow_slots(
    begin: int,
    slots: Integers,
    start: Integers,
    end: Integers,
    candidates: Integers,
    used: Integers,
    servers: Integers,
    ln_low: Floats,
    ln_high: Floats,
    groups: Groups,
    rows: Rows,
    scratch: Scratch,
) -> tuple[int, int]:
    """Update the rows of changed slots, from place ``begin`` in ``slots`` on.

    ``slots`` (N,), ascending: changed slots. ``start``, ``end`` (N,): part of ``candidates`` that
    holds the servers that may have changed, ascending. ``used`` (slots, all servers, resources):
    reservations. ``servers`` (S,): the pool's servers among all.

    Returns the place of the first slot that doesn't fit, and what is too short for it; or N and
    `FITS`.
    """
    before = -1
    for n in range(begin, len(slots)):
        t = slots[n]
        old = groups.row_of[t]
        is_as_before = old == before and changes_as_before(
            n, slots, start, end, candidates, used, servers, groups.kinds
        )
        before = old
        if is_as_before:
            _share_row(t, groups.row_of[t - 1], groups, rows)
            continue
        count = find_changed(
            t, old, candidates, start[n], end[n], used, servers, groups, rows, scratch
        )
        if count == 0:
            continue
        fits, size, reserved = regroup(
            t, old, count, used, servers, ln_low, ln_high, groups, rows, scratch
        )
        if fits != FITS:
            return n, fits
        if reserved == 0:
            _share_row(t, 0, groups, rows)
            continue
        total = number_groups(size, reserved, groups.kinds, scratch)
        if t > 0 and equals_row(groups.row_of[t - 1], total, reserved, groups, rows, scratch):
            _share_row(t, groups.row_of[t - 1], groups, rows)
            continue
        row = old
        if old == 0 or rows.slot_counts[old] > 1:
            rows.spare_count[0] -= 1
            row = rows.spare[rows.spare_count[0]]
            _share_row(t, row, groups, rows)
        write_row(row, total, reserved, groups, rows, scratch)
    return len(slots), FITS


class SlotGroups:
    """The groups of one pool of servers over a rolling horizon.

    Its groups aren't pickled: they follow from the reservations.

    Parameters
    ----------
    capacity : int64[S, R]
        Capacity of each server; ``UNLIMITED`` for a resource that never binds.
    slots : int
        Length of the horizon, which starts empty.
    ln_low, ln_high : float64[R]
        Logarithms of the price of a share of 1 when unused and when full.
    servers : int64[S], optional
        Number of each server in the arrays of `follow`, ascending; by default its position.
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
        self._slots = slots
        self._servers = (
            np.arange(len(capacity)) if servers is None else np.array(servers, dtype=np.int64)
        )
        self._out = np.zeros(len(self._capacity), dtype=np.bool_)
        self._ln_low = np.ascontiguousarray(ln_low, dtype=np.float64)
        self._ln_high = np.ascontiguousarray(ln_high, dtype=np.float64)
        self._build()

    def __getstate__(self) -> Mapping[str, object]:
        names = ("_capacity", "_slots", "_servers", "_out", "_ln_low", "_ln_high")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)
        self._build()

    @property
    def groups(self) -> Groups:
        """The arrays that kernels read; valid until the next change."""
        return self._groups

    def set_prices(self, ln_low: Floats, ln_high: Floats) -> None:
        """Set price constants, as in the constructor, and compute all prices again."""
        self._ln_low = np.ascontiguousarray(ln_low, dtype=np.float64)
        self._ln_high = np.ascontiguousarray(ln_high, dtype=np.float64)
        reprice_rows(self._ln_low, self._ln_high, self._groups, self._rows)

    def lose(self, out: Flags) -> None:
        """Set the lost servers, bool[S], and forget all reservations: `follow` reads them again."""
        self._out = np.array(out, dtype=np.bool_)
        self._build()

    def follow(self, used: Integers, versions: Integers) -> None:
        """Update all changed slots.

        ``used`` (slots, all servers, resources) are the reservations, and ``versions`` (slots,)
        theirs: 0 for a slot that never had any.
        """
        slots = np.flatnonzero(self._rows.versions != versions)
        if len(slots):
            start = np.zeros(len(slots), np.int64)
            everyone = np.arange(len(self._servers))
            self._follow(slots, start, start + len(everyone), everyone, used)
            self._rows.versions[:] = versions

    def follow_changes(
        self, used: Integers, versions: Integers, slots: Integers, servers: Integers
    ) -> None:
        """Update the groups after the reservations of known servers changed.

        ``slots`` and ``servers`` (changes,), in any order, are all that changed since the groups
        last followed; slots outside the horizon don't count. Other parameters are those of
        `follow`.
        """
        place = np.minimum(np.searchsorted(self._servers, servers), len(self._servers) - 1)
        within = (self._servers[place] == servers) & (slots >= 0) & (slots < self._slots)
        keys = slots[within] * len(self._servers) + place[within]
        if len(keys):
            if (keys[1:] <= keys[:-1]).any():  # one schedule is in order, several aren't
                keys = np.unique(keys)
            slot, candidates = np.divmod(keys, len(self._servers))
            start = np.flatnonzero(np.diff(slot, prepend=-1))
            self._follow(slot[start], start, np.append(start[1:], len(slot)), candidates, used)
        self._rows.versions[:] = versions

    def roll(self, slots: int) -> None:
        """Drop the first ``slots`` slots of the horizon and append as many empty ones."""
        roll_rows(slots, self._groups, self._rows)

    def _follow(
        self,
        slots: Integers,
        start: Integers,
        end: Integers,
        candidates: Integers,
        used: Integers,
    ) -> None:
        begin = 0
        while True:
            begin, fits = follow_slots(
                begin, slots, start, end, candidates, used, self._servers, self._ln_low,
                self._ln_high, self._groups, self._rows, self._scratch,
            )  # fmt: skip
            if fits == FITS:
                return
            self._grow(groups=fits == MORE_GROUPS)

    def _build(self) -> None:
        """Build the groups of a horizon without reservations."""
        kinds = self._build_kinds()
        count, (pool, resources) = self._slots + 1, self._capacity.shape
        wide, reserved = min(len(kinds.capacity), pool) + 16, min(pool, 16)
        self._groups = Groups(
            row_of=np.zeros(self._slots, np.int64),
            groups=np.zeros(count, np.int64),
            price=np.empty((count, resources, wide)),
            free=np.empty((count, resources, wide), np.int64),
            members=np.empty((count, wide), np.int64),
            kind=np.empty((count, wide), np.int64),
            reserved=np.zeros(count, np.int64),
            reserved_server=np.empty((count, reserved), np.int64),
            reserved_group=np.empty((count, reserved), np.int64),
            unreserved_group=np.empty((count, len(kinds.capacity)), np.int64),
            kinds=kinds,
        )
        self._rows = Rows(
            slot_counts=np.zeros(count, np.int64),
            spare=np.arange(self._slots, 0, -1),
            spare_count=np.array([self._slots]),
            size=np.empty((count, wide), np.int64),
            used=np.empty((count, resources, wide), np.int64),
            versions=np.zeros(self._slots, np.int64),
        )
        self._scratch = self._build_scratch(wide)
        fill_empty(self._ln_low, self._ln_high, self._groups, self._rows, self._scratch)

    def _build_kinds(self) -> Kinds:
        capacity, kind = np.unique(self._capacity, axis=0, return_inverse=True)
        kind = kind.reshape(-1) + len(capacity) * self._out
        full = np.where(capacity < UNLIMITED, capacity, 0)
        counts = np.bincount(kind, minlength=2 * len(capacity))
        return Kinds(
            of=np.ascontiguousarray(kind, dtype=np.int64),
            member=np.argsort(kind, kind="stable"),
            start=np.concatenate(([0], np.cumsum(counts))),
            capacity=np.concatenate((capacity, capacity)),
            used=np.concatenate((np.zeros_like(full), full)),
            is_lost=np.repeat([False, True], len(capacity)),
        )

    def _build_scratch(self, wide: int) -> Scratch:
        servers, resources = self._capacity.shape
        kinds = len(self._groups.kinds.capacity)
        return Scratch(
            changed=np.empty(servers, np.int64),
            reserved_server=np.empty(servers, np.int64),
            reserved_group=np.empty(servers, np.int64),
            unreserved_group=np.empty(kinds, np.int64),
            next=np.empty(kinds, np.int64),
            by_first=np.empty(kinds, np.int64),
            kind=np.empty(wide, np.int64),
            size=np.empty(wide, np.int64),
            first=np.empty(wide, np.int64),
            number=np.empty(wide, np.int64),
            order=np.empty(wide, np.int64),
            used=np.empty((resources, wide), np.int64),
            free=np.empty((resources, wide), np.int64),
            price=np.empty((resources, wide)),
            table=np.empty(2 ** (2 * wide).bit_length(), np.int64),
        )

    def _grow(self, *, groups: bool) -> None:
        """Double the number of groups in a row, or that of its servers with reservations."""
        made, rows = self._groups, self._rows
        if not groups:
            wide = 2 * made.reserved_server.shape[1]
            self._groups = made._replace(
                reserved_server=_widen(made.reserved_server, wide),
                reserved_group=_widen(made.reserved_group, wide),
            )
            return
        wide = 2 * made.kind.shape[1]
        self._groups = made._replace(
            price=_widen(made.price, wide),
            free=_widen(made.free, wide),
            members=_widen(made.members, wide),
            kind=_widen(made.kind, wide),
        )
        self._rows = rows._replace(size=_widen(rows.size, wide), used=_widen(rows.used, wide))
        self._scratch = self._build_scratch(wide)


def _widen(array: Numbers, wide: int) -> Numbers:
    """Return an array with a longer last axis."""
    wider = np.empty((*array.shape[:-1], wide), array.dtype)
    wider[..., : array.shape[-1]] = array
    return cast(Numbers, wider)
