"""What shares promise to tenants, told from what ran and from what was promised, by counting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def starved(
    share: Mapping[str, int],
    running: Mapping[str, int],
    owner: Mapping[str, str],
    most: Mapping[str, int],
) -> list[str]:
    """Return the jobs that are kept from places of their tenants' shares.

    Places are alike, and a worker takes one. A job could use more while it runs with fewer workers
    than it can; its tenant is entitled to them while all of its jobs together hold less than its
    share.

    Parameters
    ----------
    share : mapping of str to int
        Places of each tenant.
    running : mapping of str to int
        Workers of each job that runs.
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
    """Return a date by which a tenant was promised more work than its places can do.

    Parameters
    ----------
    places : int
        Its share, and what nobody owns.
    slot : int
        First slot in which work can still be done.
    promised : iterable of (int, int)
        Slot by whose end, and worker-slots that remain, of each of its promises.

    Returns
    -------
    (int, int, int) or None
        Date, work promised by then, and what its places can do; None where all is possible.
    """
    due = sorted(promised)
    work = 0
    for date, left in due:
        work += left
        room = places * (date - slot + 1)
        if work > room:
            return date, work, room
    return None
