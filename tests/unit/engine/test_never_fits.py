"""A job never fits exactly if servers, filled one worker at a time, hold too few of its workers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.amounts import Dimension
from shadowprice.core.cluster import Role, build_cluster
from shadowprice.core.devices import whole_parts
from shadowprice.core.refusal import RefusalReason
from shadowprice.engine.validation import never_fits
from tests.support.examples import example_count
from tests.support.workloads import make_job

KINDS = {"gpu": Dimension.COUNT, "cpu": Dimension.COUNT}
AMOUNTS = st.fixed_dictionaries({kind: st.integers(0, 6) for kind in KINDS})
ENOUGH = 1_000  # of a resource that it doesn't use
SERVERS = st.lists(st.tuples(st.sampled_from(Role), AMOUNTS), min_size=1, max_size=4)


def room(servers: list[tuple[Role, dict[str, int]]], role: Role, demand: dict[str, int]) -> int:
    count = 0
    demand = {**demand, "gpu": whole_parts(demand["gpu"])}  # shares of a device
    for carries, capacity in servers:
        left = dict(capacity)
        if carries in (role, Role.ANY) and not any(demand.values()):
            return ENOUGH
        while carries in (role, Role.ANY) and all(left[kind] >= demand[kind] for kind in KINDS):
            left = {kind: left[kind] - demand[kind] for kind in KINDS}
            count += 1
    return count


@settings(deadline=None, max_examples=example_count(300))
@given(SERVERS, AMOUNTS, AMOUNTS, st.integers(1, 4))
def test_servers_filled_by_hand_agree(
    servers: list[tuple[Role, dict[str, int]]],
    worker: dict[str, int],
    ps: dict[str, int],
    fewest: int,
) -> None:
    cluster = build_cluster(
        slot_seconds=Fraction(600),
        horizon=4,
        servers=[(f"s{index}", *server) for index, server in enumerate(servers)],
        dimensions=KINDS,
    )
    single_job = make_job(
        cluster, worker_amounts=worker, ps_amounts=ps, chunks=6, worker_range=(fewest, 6)
    )
    needed = {Role.WORKER: (worker, fewest), Role.PS: (ps, int(single_job.ps_counts[0]))}
    short = [
        f"room for {count} {name}"
        for (role, (demand, count)), name in zip(
            needed.items(), ("worker", "parameter server"), strict=True
        )
        if room(servers, role, demand) < count
    ]
    refusal = never_fits(single_job, cluster)
    assert (refusal is not None) == bool(short)
    if refusal is not None:
        assert refusal.reason is RefusalReason.NEVER_FITS
        assert short[0] in refusal.message


def test_unlimited_capacity_of_several_servers_is_room() -> None:
    cluster = build_cluster(
        slot_seconds=Fraction(600),
        horizon=4,
        servers=[("a", Role.ANY, {"bandwidth": 1}), *((name, Role.ANY, {}) for name in "bcd")],
        dimensions={"bandwidth": Dimension.RATE},
    )
    job = make_job(cluster, worker_amounts={"bandwidth": 1}, ps_amounts=None, chunks=6)
    assert never_fits(job, cluster) is None
