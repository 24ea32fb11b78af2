"""Equal servers of a slot as groups, updated slot by slot.

Servers of one capacity with the same reservations have the same price and free capacity. So each
slot of a pool is a grouping: groups of servers with their counts. It lists only servers with
reservations; all other servers of a kind are one group. So time and memory grow with the kinds of
servers and with the reservations, not with the number of servers. Slots without reservations share
one grouping, called a row, and so do neighbouring slots with equal reservations.

Servers are numbered by their position in the pool.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar, cast

import numpy as np

from shadowprice.kernels.arrays import Flags, Floats, Integers
from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.prices.exponential import UNLIMITED, exponential_price
from shadowprice.kernels.slots.polygons import add_to_hash

Numbers = TypeVar("Numbers", Floats, Integers)

_MAX_LINEAR_SEARCHES = 8  # number of searches for a group above which hashing all is faster

FITS, MORE_GROUPS, MORE_SERVERS = constant(0), constant(1), constant(2)
"""Whether a slot fits into the arrays, or which arrays are too short."""


class Kinds(NamedTuple):
    """Kinds of servers: a kind for each capacity, and another for lost servers of that capacity.

    Shapes: S servers, K kinds, R resources, T slots, Q rows, W groups in a row.
    """

    of: Integers  # kind of each server, shape (S,)
    member: Integers  # servers by kind, ascending in each, shape (S,)
    start: Integers  # first entry of each kind in ``member``, and the length, shape (K + 1,)
    capacity: Integers  # shape (K, R)
    used: Integers  # 0, or all capacity of a lost server, which counts as full, shape (K, R)
    is_lost: Flags  # shape (K,)


class Groups(NamedTuple):
    """Groups of equal servers of one pool over a horizon.

    Attributes
    ----------
    row_of : int64[T]
        Row of each slot. Row 0 is for slots without reservations; slots with equal reservations may
        share any other row.
    groups : int64[Q]
        Number of groups in each row, some of which may be empty; entries beyond it are meaningless.
    price : float64[Q, R, W]
        Price of a share of 1 of each resource, by group.
    free : int64[Q, R, W]
        Free capacity of each server of the group, or ``UNLIMITED``.
    members : int64[Q, W]
        Servers in each group; 0 if it is empty, and for lost servers, which host nothing.
    kind : int64[Q, W]
        Kind of the servers of each group, -1 if it is empty.
    first : int64[Q, W]
        Lowest server of each group.
    reserved : int64[Q]
        Number of servers with reservations.
    reserved_server : int64[Q, X]
        The servers with reservations, ascending.
    reserved_group : int64[Q, X]
        Group of each server in ``reserved_server``.
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
    first: Integers
    reserved: Integers
    reserved_server: Integers
    reserved_group: Integers
    unreserved_group: Integers
    kinds: Kinds


class Rows(NamedTuple):
    """What updates need besides `Groups`; the last five arrays are scratch space for one slot.

    Allocating scratch space for each slot would take most of the time.
    """

    slot_counts: Integers  # number of slots that share each row; row 0 isn't counted, shape (Q,)
    spare: Integers  # stack of rows without slots, shape (T,)
    spare_count: Integers  # height of the stack, shape (1,)
    used: Integers  # reservations on each server of a group, shape (Q, R, W)
    versions: Integers  # version of each slot's reservations that its row shows, shape (T,)
    servers: Integers  # number of each server of the pool among all servers, shape (S,)
    ln_low: Floats  # logarithm of the price of a share of 1 when unused, shape (R,)
    ln_high: Floats  # and when full
    changed: Integers  # servers whose reservations changed, ascending, shape (S,)
    reserved_server: Integers  # end of the list of servers with reservations, shape (S,)
    reserved_group: Integers  # group of each, shape (S,)
    sought: Integers  # reservations on one server, whose group is searched, shape (R,)
    table: Integers  # hash table of groups, over four times as long as a row, shape (power of 2,)


class Changes(NamedTuple):
    """Slots whose reservations may have changed, and in each the candidate servers."""

    slots: Integers  # relative to the horizon's start, ascending, shape (N,)
    start: Integers  # first entry of each slot in `candidates`, shape (N,)
    end: Integers  # end of its entries
    candidates: Integers  # servers, ascending in each slot


@inlined
def expand_groups(row: int, groups: Groups, group: Integers) -> None:
    """Write the group of each server in a row to ``group``, int64[S]."""
    kinds = groups.kinds
    for s in range(len(kinds.of)):
        group[s] = groups.unreserved_group[row, kinds.of[s]]
    for n in range(groups.reserved[row]):
        group[groups.reserved_server[row, n]] = groups.reserved_group[row, n]


@inlined
def _seek(row: int, position: int, s: int, groups: Groups) -> int:
    """Return the first position, from ``position`` on, of a reserved server ``s`` or higher."""
    end = groups.reserved[row]
    if position < end and groups.reserved_server[row, position] < s:
        position += 1
        while position < end:
            middle = (position + end) // 2
            if groups.reserved_server[row, middle] < s:
                position = middle + 1
            else:
                end = middle
    return position


@inlined
def _is_at(row: int, position: int, s: int, groups: Groups) -> bool:
    """Return whether server ``s`` has reservations, given its position from `_seek`."""
    return bool(position < groups.reserved[row] and groups.reserved_server[row, position] == s)


@kernel
def find_groups(groups: Groups, row: Integers, server: Integers) -> Integers:
    """Return the group of each server, ``server[n]``, in its row, ``row[n]``."""
    result = np.empty(len(row), np.int64)
    for n in range(len(row)):
        q, s = row[n], server[n]
        position = _seek(q, 0, s, groups)
        if _is_at(q, position, s, groups):
            result[n] = groups.reserved_group[q, position]
        else:
            result[n] = groups.unreserved_group[q, groups.kinds.of[s]]
    return result


@inlined
def _release_row(row: int, rows: Rows) -> None:
    """Release a row for one slot; a row without slots becomes spare."""
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
def roll_rows(steps: int, row_of: Integers, rows: Rows) -> None:
    """Drop the first slots of the horizon and append as many without reservations."""
    slots = len(row_of)
    steps = min(steps, slots)
    for t in range(steps):
        _release_row(row_of[t], rows)
    for t in range(slots - steps):
        row_of[t] = row_of[t + steps]
        rows.versions[t] = rows.versions[t + steps]
    for t in range(slots - steps, slots):
        row_of[t] = 0
        rows.versions[t] = 0


@allocation_free
def find_changed(n: int, changes: Changes, used: Integers, groups: Groups, rows: Rows) -> int:
    """Write to ``rows.changed`` the candidates whose reservations a slot's row doesn't show.

    ``n`` is the slot's position in ``changes``. Returns the number of these servers.
    """
    t = changes.slots[n]
    row = groups.row_of[t]
    count = 0
    position = 0
    kinds = groups.kinds
    for c in range(changes.start[n], changes.end[n]):
        s = changes.candidates[c]
        if kinds.is_lost[kinds.of[s]]:
            continue
        position = _seek(row, position, s, groups)
        differs = False
        if _is_at(row, position, s, groups):
            g = groups.reserved_group[row, position]
            for r in range(used.shape[2]):
                differs = differs or used[t, rows.servers[s], r] != rows.used[row, r, g]
        else:
            for r in range(used.shape[2]):
                differs = differs or used[t, rows.servers[s], r] != 0
        if differs:
            rows.changed[count] = s
            count += 1
    return count


@inlined
def _hash_key(k: int, rows: Rows) -> int:
    mixed: int = k
    for r in range(len(rows.sought)):
        mixed = add_to_hash(mixed, rows.sought[r])
    return mixed


@inlined
def _has_key(row: int, g: int, k: int, groups: Groups, rows: Rows) -> bool:
    same = bool(groups.kind[row, g] == k)
    for r in range(len(rows.sought)):
        same = same and bool(rows.used[row, r, g] == rows.sought[r])
    return same


@allocation_free
def find_group(row: int, size: int, k: int, mask: int, groups: Groups, rows: Rows) -> int:
    """Return the group of servers of a kind with the reservations in ``rows.sought``, or -1.

    ``mask`` is the size of the hash table less 1; with 0, the first ``size`` groups are searched.
    """
    if mask == 0:
        for g in range(size):
            if _has_key(row, g, k, groups, rows):
                return g
        return -1
    bucket = _hash_key(k, rows) & mask
    while rows.table[bucket] >= 0:
        candidate: int = rows.table[bucket]
        if _has_key(row, candidate, k, groups, rows):
            return candidate
        bucket = (bucket + 1) & mask
    return -1


@allocation_free
def fill_table(row: int, size: int, mask: int, groups: Groups, rows: Rows) -> None:
    """Fill the hash table with the first ``size`` groups of a row."""
    for bucket in range(mask + 1):
        rows.table[bucket] = -1
    for g in range(size):
        mixed = groups.kind[row, g]
        if mixed < 0:
            continue
        for r in range(len(rows.sought)):
            mixed = add_to_hash(mixed, rows.used[row, r, g])
        bucket = mixed & mask
        while rows.table[bucket] >= 0:
            bucket = (bucket + 1) & mask
        rows.table[bucket] = g


@inlined
def _add_group(row: int, g: int, k: int, s: int, groups: Groups, rows: Rows) -> None:
    """Write a group without members, of the kind ``k`` and the reservations ``rows.sought``.

    ``s`` will be its first member.
    """
    groups.kind[row, g] = k
    groups.members[row, g] = 0
    groups.first[row, g] = s
    for r in range(len(rows.sought)):
        capacity, used = groups.kinds.capacity[k, r], rows.sought[r]
        rows.used[row, r, g] = used
        groups.free[row, r, g] = capacity - used if capacity < UNLIMITED else capacity
        groups.price[row, r, g] = exponential_price(used, capacity, rows.ln_low[r], rows.ln_high[r])


@allocation_free
def copy_row(row: int, target: int, groups: Groups, rows: Rows) -> None:
    """Copy the groups of a row to another."""
    size, reserved = groups.groups[row], groups.reserved[row]
    groups.groups[target], groups.reserved[target] = size, reserved
    for n in range(reserved):
        groups.reserved_server[target, n] = groups.reserved_server[row, n]
        groups.reserved_group[target, n] = groups.reserved_group[row, n]
    for k in range(groups.unreserved_group.shape[1]):
        groups.unreserved_group[target, k] = groups.unreserved_group[row, k]
    for g in range(size):
        groups.members[target, g] = groups.members[row, g]
        groups.kind[target, g] = groups.kind[row, g]
        groups.first[target, g] = groups.first[row, g]
    for r in range(rows.used.shape[1]):
        for g in range(size):
            rows.used[target, r, g] = rows.used[row, r, g]
            groups.free[target, r, g] = groups.free[row, r, g]
            groups.price[target, r, g] = groups.price[row, r, g]


@allocation_free
def find_first(row: int, size: int, groups: Groups) -> None:
    """Find the first server of each group whose first server left it.

    ``first`` of such a group is ``-1 - s``, where ``s`` is a lower bound of its servers.
    """
    kinds = groups.kinds
    for g in range(size):
        if groups.first[row, g] >= 0 or groups.kind[row, g] < 0:
            continue
        s = -1 - groups.first[row, g]
        k = groups.kind[row, g]
        position = _seek(row, 0, s, groups)
        if groups.unreserved_group[row, k] != g:
            while groups.reserved_group[row, position] != g:
                position += 1
            groups.first[row, g] = groups.reserved_server[row, position]
            continue
        low, high = kinds.start[k], kinds.start[k + 1]
        while low < high:
            middle = (low + high) // 2
            if kinds.member[middle] < s:
                low = middle + 1
            else:
                high = middle
        while True:
            s = kinds.member[low]
            position = _seek(row, position, s, groups)
            if not _is_at(row, position, s, groups):
                break
            low += 1
        groups.first[row, g] = s


@allocation_free
def edit_row(t: int, row: int, count: int, used: Integers, groups: Groups, rows: Rows) -> int:
    """Move ``count`` changed servers of a slot's row to their new groups.

    Returns `FITS`, or which arrays are too short. Then the row shows no change, or only the first
    changes, and the next call makes the rest.
    """
    resources, width = rows.used.shape[1:]
    kinds = groups.kinds
    reserved = groups.reserved[row]
    position = 0
    added = 0
    for c in range(count):
        position = _seek(row, position, rows.changed[c], groups)
        if not _is_at(row, position, rows.changed[c], groups):
            added += 1
    if reserved + added > groups.reserved_server.shape[1]:
        return MORE_SERVERS
    size = groups.groups[row]
    mask = 0
    if count > _MAX_LINEAR_SEARCHES:
        # The table gets all groups of the row before and after the changes, and stays sparse.
        mask = 15
        while mask < 4 * min(size + count, width):
            mask = 2 * mask + 1
        fill_table(row, size, mask, groups, rows)
    fits = FITS
    is_any_without_first = False
    hole = 0  # all groups before it are in use
    start = _seek(row, 0, rows.changed[0], groups)  # reserved servers before it stay
    position = start
    n = 0
    for c in range(count):
        s = rows.changed[c]
        k = kinds.of[s]
        is_reserved = False
        for r in range(resources):
            rows.sought[r] = used[t, rows.servers[s], r]
            is_reserved = is_reserved or rows.sought[r] != 0
        target = groups.unreserved_group[row, k]
        if is_reserved:
            target = find_group(row, size, k, mask, groups, rows)
        if target < 0:
            while hole < size and groups.kind[row, hole] >= 0:
                hole += 1
            if hole == width:
                fits = MORE_GROUPS
                break
            target = hole
            size = max(size, hole + 1)
            _add_group(row, target, k, s, groups, rows)
            if not is_reserved:
                groups.unreserved_group[row, k] = target
            elif mask > 0:
                bucket = _hash_key(k, rows) & mask
                while rows.table[bucket] >= 0:
                    bucket = (bucket + 1) & mask
                rows.table[bucket] = target
        while position < reserved and groups.reserved_server[row, position] < s:
            rows.reserved_server[n] = groups.reserved_server[row, position]
            rows.reserved_group[n] = groups.reserved_group[row, position]
            position += 1
            n += 1
        source = groups.unreserved_group[row, k]
        if _is_at(row, position, s, groups):
            source = groups.reserved_group[row, position]
            position += 1
        if is_reserved:
            rows.reserved_server[n] = s
            rows.reserved_group[n] = target
            n += 1
        groups.members[row, source] -= 1
        if groups.members[row, source] == 0:
            groups.kind[row, source] = -1
            if groups.unreserved_group[row, k] == source:
                groups.unreserved_group[row, k] = -1
        elif groups.first[row, source] == s:
            # Negative: the first server is unknown, but above s. `find_first` searches from there.
            groups.first[row, source] = -1 - s
            is_any_without_first = True
        groups.members[row, target] += 1
        if groups.first[row, target] >= 0:
            groups.first[row, target] = min(groups.first[row, target], s)
        else:
            # The maximum of -1 - s is the smallest s, from which the search must start.
            groups.first[row, target] = max(groups.first[row, target], -1 - s)
    while position < reserved:
        rows.reserved_server[n] = groups.reserved_server[row, position]
        rows.reserved_group[n] = groups.reserved_group[row, position]
        position += 1
        n += 1
    for offset in range(n):
        groups.reserved_server[row, start + offset] = rows.reserved_server[offset]
        groups.reserved_group[row, start + offset] = rows.reserved_group[offset]
    groups.reserved[row] = start + n
    while groups.kind[row, size - 1] < 0:
        size -= 1
    groups.groups[row] = size
    if is_any_without_first:
        find_first(row, size, groups)
    return fits


@allocation_free
def are_equal(row: int, other: int, groups: Groups, rows: Rows) -> bool:
    """Return whether two rows show the same reservations."""
    if groups.reserved[row] != groups.reserved[other]:
        return False
    for n in range(groups.reserved[row]):
        if groups.reserved_server[row, n] != groups.reserved_server[other, n]:
            return False
        g, other_group = groups.reserved_group[row, n], groups.reserved_group[other, n]
        for r in range(rows.used.shape[1]):
            if rows.used[row, r, g] != rows.used[other, r, other_group]:
                return False
    return True


@kernel
def fill_empty(groups: Groups, rows: Rows) -> None:
    """Fill row 0 with a slot without reservations."""
    kinds = groups.kinds
    size = 0
    for k in range(len(kinds.capacity)):
        groups.unreserved_group[0, k] = -1
        if kinds.start[k] == kinds.start[k + 1]:
            continue
        groups.unreserved_group[0, k] = size
        for r in range(len(rows.sought)):
            rows.sought[r] = kinds.used[k, r]
        _add_group(0, size, k, kinds.member[kinds.start[k]], groups, rows)
        if not kinds.is_lost[k]:
            groups.members[0, size] = kinds.start[k + 1] - kinds.start[k]
        size += 1
    groups.groups[0] = size
    groups.reserved[0] = 0


@allocation_free
def reprice_rows(groups: Groups, rows: Rows) -> None:
    """Compute all prices of the rows in use again, after the price constants changed."""
    for row in range(len(groups.groups)):
        if row > 0 and rows.slot_counts[row] == 0:
            continue
        for g in range(groups.groups[row]):
            k = groups.kind[row, g]
            if k < 0:
                continue
            for r in range(len(rows.ln_low)):
                used, capacity = rows.used[row, r, g], groups.kinds.capacity[k, r]
                groups.price[row, r, g] = exponential_price(
                    used, capacity, rows.ln_low[r], rows.ln_high[r]
                )


@kernel
def list_changes(
    slots: Integers, servers: Integers, begin: int, horizon: int, position: Integers
) -> Changes:
    """Return the changed slots of a window, and their changed servers.

    ``slots``, ``servers`` (changes,): pairs in any order, with duplicates. ``begin``, ``horizon``:
    first slot and length of the window. ``position``: position of each server in the pool; a server
    outside the pool has -1, or a number beyond the array.
    """
    keys = np.empty(len(slots), np.int64)
    width = len(position)
    size = 0
    is_sorted = True  # one schedule is, several aren't
    for n in range(len(slots)):
        t, s = slots[n] - begin, servers[n]
        if 0 <= t < horizon and s < width and position[s] >= 0:
            keys[size] = t * width + position[s]
            is_sorted = is_sorted and (size == 0 or keys[size - 1] < keys[size])
            size += 1
    order = np.empty(0, np.int64)
    if not is_sorted:
        order = stable_order(keys[:size])
    changed, start = np.empty(size, np.int64), np.empty(size, np.int64)
    end, candidates = np.empty(size, np.int64), np.empty(size, np.int64)
    count = 0
    number = 0
    before = -1
    for n in range(size):
        key = keys[n] if is_sorted else keys[order[n]]
        if key == before:
            continue
        t = key // width
        if before < 0 or t != before // width:
            changed[count] = t
            start[count] = number
            count += 1
        candidates[number] = key - t * width
        number += 1
        end[count - 1] = number
        before = key
    return Changes(changed[:count], start[:count], end[:count], candidates[:number])


@allocation_free
def changes_as_before(n: int, changes: Changes, used: Integers, kinds: Kinds, rows: Rows) -> bool:
    """Return whether a slot has the candidates and reservations of the slot before.

    ``n`` is the slot's position in ``changes``.
    """
    slots, start, end, candidates = changes
    t, count = slots[n], end[n] - start[n]
    if slots[n - 1] != t - 1 or end[n - 1] - start[n - 1] != count:
        return False
    for c in range(count):
        s = candidates[start[n] + c]
        if candidates[start[n - 1] + c] != s:
            return False
        differs = False
        for r in range(used.shape[2]):
            differs = differs or used[t, rows.servers[s], r] != used[t - 1, rows.servers[s], r]
        if differs and not kinds.is_lost[kinds.of[s]]:
            return False
    return True


@allocation_free
def follow_slots(
    begin: int, changes: Changes, used: Integers, groups: Groups, rows: Rows
) -> tuple[int, int]:
    """Update the rows of changed slots, from position ``begin`` in ``changes`` on.

    ``used`` (slots, all servers, resources) are the reservations. Returns the position of the first
    slot that doesn't fit, and which arrays are too short; or the number of slots and `FITS`.
    """
    last_row = -1
    for n in range(begin, len(changes.slots)):
        t = changes.slots[n]
        old = groups.row_of[t]
        is_as_before = old == last_row and changes_as_before(n, changes, used, groups.kinds, rows)
        last_row = old
        if is_as_before:
            _share_row(t, groups.row_of[t - 1], groups, rows)
            continue
        count = find_changed(n, changes, used, groups, rows)
        if count == 0:
            continue
        row = old
        if old == 0 or rows.slot_counts[old] > 1:  # copy on write: other slots share the row
            rows.spare_count[0] -= 1
            row = rows.spare[rows.spare_count[0]]
            copy_row(old, row, groups, rows)
            _share_row(t, row, groups, rows)
        fits = edit_row(t, row, count, used, groups, rows)
        if fits != FITS:
            return n, fits
        if groups.reserved[row] == 0:
            _share_row(t, 0, groups, rows)
        elif t > 0 and are_equal(groups.row_of[t - 1], row, groups, rows):
            _share_row(t, groups.row_of[t - 1], groups, rows)
    return len(changes.slots), FITS


class SlotGroups:
    """The groups of one pool of servers over a rolling horizon.

    Groups aren't pickled, because `follow` restores them from the reservations.

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

    _groups: Groups
    _rows: Rows

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
        self._position = np.full(self._servers.max(initial=-1) + 1, -1)
        self._position[self._servers] = np.arange(len(self._servers))
        self._out = np.zeros(len(self._capacity), dtype=np.bool_)
        self._ln_low = np.ascontiguousarray(ln_low, dtype=np.float64)
        self._ln_high = np.ascontiguousarray(ln_high, dtype=np.float64)
        self._build()

    def __getstate__(self) -> Mapping[str, object]:
        names = ("_capacity", "_slots", "_servers", "_position", "_out", "_ln_low", "_ln_high")
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
        self._rows = self._rows._replace(ln_low=self._ln_low, ln_high=self._ln_high)
        reprice_rows(self._groups, self._rows)

    def lose(self, is_lost: Flags) -> None:
        """Set the lost servers, bool[S], and drop all reservations until the next `follow`."""
        self._out = np.array(is_lost, dtype=np.bool_)
        self._build()

    def follow(self, used: Integers, versions: Integers) -> None:
        """Update all slots whose version changed.

        ``used`` (slots, all servers, resources) are the reservations, and ``versions`` (slots,)
        their versions: 0 for a slot that never had reservations.
        """
        slots = np.flatnonzero(self._rows.versions != versions)
        if len(slots):
            start = np.zeros(len(slots), np.int64)
            all_servers = np.arange(len(self._servers))
            self._follow(Changes(slots, start, start + len(all_servers), all_servers), used)
            self._rows.versions[:] = versions

    def follow_changes(
        self, used: Integers, versions: Integers, slots: Integers, servers: Integers, begin: int
    ) -> None:
        """Update the groups if it is known which reservations changed.

        ``slots`` and ``servers`` (changes,), in any order, are all changes since the last update.
        ``begin`` is the number of the horizon's first slot; slots outside the horizon are ignored.
        Other parameters are those of `follow`.
        """
        changes = list_changes(slots, servers, begin, self._slots, self._position)
        if len(changes.slots):
            self._follow(changes, used)
        self._rows.versions[:] = versions

    def roll(self, slots: int) -> None:
        """Drop the first ``slots`` slots of the horizon and append as many empty ones."""
        roll_rows(slots, self._groups.row_of, self._rows)

    def _follow(self, changes: Changes, used: Integers) -> None:
        begin, fits = follow_slots(0, changes, used, self._groups, self._rows)
        while fits != FITS:
            self._grow(groups=fits == MORE_GROUPS)
            begin, fits = follow_slots(begin, changes, used, self._groups, self._rows)

    def _build(self) -> None:
        """Build the groups of a horizon without reservations."""
        kinds = self._build_kinds()
        count, (pool, resources) = self._slots + 1, self._capacity.shape
        width, reserved = min(len(kinds.capacity), pool) + 16, min(pool, 16)
        self._groups = Groups(
            row_of=np.zeros(self._slots, np.int64),
            groups=np.zeros(count, np.int64),
            price=np.empty((count, resources, width)),
            free=np.empty((count, resources, width), np.int64),
            members=np.empty((count, width), np.int64),
            kind=np.empty((count, width), np.int64),
            first=np.empty((count, width), np.int64),
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
            used=np.empty((count, resources, width), np.int64),
            versions=np.zeros(self._slots, np.int64),
            servers=self._servers,
            ln_low=self._ln_low,
            ln_high=self._ln_high,
            changed=np.empty(pool, np.int64),
            reserved_server=np.empty(pool, np.int64),
            reserved_group=np.empty(pool, np.int64),
            sought=np.empty(resources, np.int64),
            table=_hash_table(width),
        )
        fill_empty(self._groups, self._rows)

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

    def _grow(self, *, groups: bool) -> None:
        """Double the width of rows: of their groups, or of their servers with reservations."""
        current, rows = self._groups, self._rows
        in_use = rows.slot_counts > 0
        in_use[0] = True
        if not groups:
            self._groups = current._replace(
                reserved_server=_widen(current.reserved_server, in_use),
                reserved_group=_widen(current.reserved_group, in_use),
            )
            return
        self._groups = current._replace(
            price=_widen(current.price, in_use),
            free=_widen(current.free, in_use),
            members=_widen(current.members, in_use),
            kind=_widen(current.kind, in_use),
            first=_widen(current.first, in_use),
        )
        table = _hash_table(self._groups.kind.shape[1])
        self._rows = rows._replace(used=_widen(rows.used, in_use), table=table)


def _hash_table(width: int) -> Integers:
    return np.empty(2 ** (4 * width).bit_length(), np.int64)


def _widen(array: Numbers, in_use: Flags) -> Numbers:
    """Return an array with twice the length of the last axis, and the contents of rows in use."""
    width = array.shape[-1]
    # Other rows stay unwritten, so their pages of the new array take no memory.
    wider = np.empty((*array.shape[:-1], 2 * width), array.dtype)
    wider[in_use, ..., :width] = array[in_use]
    return cast(Numbers, wider)
