"""Parameter servers that serve only workers elsewhere, and communication that costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import pytest

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.errors import PolicyError
from shadowprice.core.events import Commit, Decision, JobsArrived, Place, PolicyEvent
from shadowprice.core.job import Job, StepModel
from shadowprice.core.policy import Capabilities, Status, View
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.specs import JobSpec
from shadowprice.engine import Engine
from tests.support.workloads import GBPS, make_cluster, make_job

PLACES = ((0, 3, 1), (1, 1, 0))
"""(server, workers, parameter servers): one worker is on another server."""


class Fixed:
    """Places every job as the test says."""

    def __init__(
        self, entries: tuple[tuple[int, int, int], ...], *, local_free: bool, ahead: bool
    ) -> None:
        self.entries = entries
        self.ahead = ahead
        self.capabilities = Capabilities(plans_ahead=ahead, local_traffic_is_free=local_free)

    def resume(self, view: View) -> None:
        pass  # it knows nothing of earlier events that it needs

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            for arrived in event.jobs:
                if self.ahead:
                    rows = [(slot, *entry) for slot in (0, 1) for entry in self.entries]
                    yield Commit(arrived.name, Schedule.of(rows), 0.0, 0.0, 0.0)
                else:
                    yield Place(arrived.name, Placement.of(self.entries))


def served() -> Job:
    """Four workers that (6) gives two parameter servers of twice a worker's bandwidth."""
    cluster = make_cluster(0, 0, 3)
    made = make_job(cluster, ps_amounts={"cpu": 1000, "bandwidth": 2 * GBPS}, worker_range=(4, 4))
    assert made.ps_counts.tolist() == [2]
    return made


def status(entries: tuple[tuple[int, int, int], ...], *, local_free: bool, ahead: bool) -> Status:
    engine = Engine(make_cluster(0, 0, 3), Fixed(entries, local_free=local_free, ahead=ahead))
    engine.handle(JobsArrived(0, (served(),)))
    return engine.jobs["job"].status


@pytest.mark.parametrize("ahead", [True, False])
def test_workers_beside_their_parameter_server_need_no_other(ahead: bool) -> None:
    assert status(PLACES, local_free=True, ahead=ahead) is Status.ADMITTED
    with pytest.raises(PolicyError, match=r"break \(6\)"):
        status(PLACES, local_free=False, ahead=ahead)


@pytest.mark.parametrize("ahead", [True, False])
def test_each_server_of_parameter_servers_carries_all_workers_elsewhere(ahead: bool) -> None:
    # One parameter server can serve two workers elsewhere; three are too many ...
    assert status(((0, 2, 1), (1, 2, 0)), local_free=True, ahead=ahead) is Status.ADMITTED
    with pytest.raises(PolicyError, match=r"cannot carry 3 workers elsewhere, 2 could"):
        status(((0, 1, 1), (1, 3, 0)), local_free=True, ahead=ahead)
    # ... and a second one on another server does not relieve the first: (3i) binds both.
    with pytest.raises(PolicyError, match=r"\(3i\)"):
        status(((0, 1, 1), (1, 3, 1)), local_free=True, ahead=ahead)


def test_a_job_with_parameter_servers_has_at_least_one() -> None:
    with pytest.raises(PolicyError, match="parameter servers"):
        status(((0, 4, 0),), local_free=True, ahead=True)


def test_one_parameter_server_is_enough_to_fit() -> None:
    cluster = make_cluster(1, 1, gpus=8)
    wide = make_job(
        cluster, ps_amounts={"cpu": 16_000, "bandwidth": 2 * GBPS}, worker_range=(4, 4), chunks=4
    )
    for local_free, expected in ((False, Status.REFUSED), (True, Status.ADMITTED)):
        engine = Engine(cluster, Fixed(((0, 4, 0), (1, 0, 2)), local_free=local_free, ahead=False))
        if expected is Status.REFUSED:
            engine.handle(JobsArrived(0, (wide,)))
            assert engine.jobs["job"].status is expected
        else:
            with pytest.raises(PolicyError, match="overbook"):
                engine.handle(JobsArrived(0, (wide,)))


SPEC = {
    "name": "job",
    "chunks": 2,
    "minibatch_time": "1 slots",
    "gradient": "225GB",
    "worker": {"gpu": 1, "bandwidth": "1Gbps"},
    "ps": {"cpu": 1, "bandwidth": "1Gbps"},
    "utility": {"kind": "constant", "value": 1},
}


def test_unlimited_internal_bandwidth_makes_communication_free() -> None:
    cluster = make_cluster(0, 0, 2)
    assert cluster.slot_seconds == Fraction(600)
    made = JobSpec.model_validate(SPEC | {"internal_bandwidth": "unlimited"}).resolve(cluster)
    assert made.internal_bandwidth == UNLIMITED
    # 2 * 225 GB over 1 Gbit/s are an hour; a mini-batch alone is a slot of ten minutes.
    assert made.internal_gains.tolist() == [1_000_000, 2_000_000]
    assert made.gains.tolist() == [142_858, 285_715]
    assert StepModel(Fraction(5), gradient_bytes=7).step_seconds(UNLIMITED) == 5
    assert Job.from_record(made.record()).internal_gains.tolist() == made.internal_gains.tolist()


def test_without_it_colocation_is_as_fast_as_anything() -> None:
    made = JobSpec.model_validate(SPEC).resolve(make_cluster(0, 0, 2))
    assert not made.two_rates
