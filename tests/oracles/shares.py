"""What shares guarantee to tenants, by counting allocations and promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def starved(
    share: Mapping[str, int],
    running: Mapping[str, int],
    owner: Mapping[str, str],
    most: Mapping[str, int],
) -> list[str]:
    """Return the jobs that are kept from units of their tenants' shares.

    Units are equal, and a worker takes one. A job could use more if it runs with fewer workers than
    it can. Its tenant is entitled to them while all of its jobs together use less than its share.

    Parameters
    ----------
    share : mapping of str to int
        Units of each tenant.
    running : mapping of str to int
        Workers of each running job.
    owner : mapping of str to str
        Tenant of each open job.
    most : mapping of str to int
        Workers that each open job could use.
    """
    held = dict.fromkeys(share, 0)
    for name, workers in running.items():
        held[owner[name]] += workers
    return [
        name
        for name, tenant in owner.items()
        if running.get(name, 0) < most[name] and held[tenant] < share[tenant]
    ]


def overdrawn(
    places: int, slot: int, promised: Iterable[tuple[int, int]]
) -> tuple[int, int, int] | None:
    """Return a date by which a tenant was promised more work than its units can do.

    Parameters
    ----------
    places : int
        Its share, and what nobody owns.
    slot : int
        First slot in which work can still be done.
    promised : iterable of (int, int)
        Last slot and remaining worker-slots of each of its promises.

    Returns
    -------
    (int, int, int) or None
        Date, work promised by then, and what its units can do; None if all is possible.
    """
    due = sorted(promised)
    work = 0
    for date, left in due:
        work += left
        room = places * (date - slot + 1)
        if work > room:
            return date, work, room
    return None
