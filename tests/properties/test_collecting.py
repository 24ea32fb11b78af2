"""Closed jobs leave the engine for the results, and no output shows a difference."""

import pytest

from shadowprice.core.events import JobCancelled
from shadowprice.engine import Engine
from shadowprice.results.recorder import Recorder
from shadowprice.results.tables import decision_records, job_table
from shadowprice.simulator.driver import Simulation
from tests.support import policy_cases


class Keeping(Recorder):
    """A recorder that leaves all jobs with the engine."""

    collects = False


def recorded(kind: type[Recorder], policy: str, seed: int) -> tuple[Recorder, Engine]:
    cluster, jobs, incidents = policy_cases.build_world(policy, seed)
    # The report on the first job comes long after its end.
    late = [JobCancelled(30, jobs[0].name)]
    made = policy_cases.build_policy(policy, cluster, jobs, seed)
    recorder = kind(cluster, jobs, made)
    until = 40 if made.capabilities.wakes_every_slot else None
    simulation = Simulation(cluster, jobs, made, until, incidents=[*incidents, *late], seed=seed)
    return recorder, simulation.run([recorder])


@pytest.mark.parametrize("policy", policy_cases.policy_names())
def test_a_run_whose_jobs_leave_the_engine_has_the_same_results(policy: str) -> None:
    for seed in (2, 5):
        collecting, engine = recorded(Recorder, policy, seed)
        keeping, full = recorded(Keeping, policy, seed)
        assert job_table(collecting).equals(job_table(keeping))
        assert list(decision_records(collecting, plans=True)) == list(
            decision_records(keeping, plans=True)
        )
        assert engine.state_digest() == full.state_digest()
        awaited = {event.job for event in keeping.incidents if isinstance(event, JobCancelled)}
        gone = full.jobs.keys() - engine.jobs.keys()
        assert {name for name, record in engine.jobs.items() if not record.status.open} <= awaited
        assert not gone & (full.open_jobs.keys() | awaited)
        assert gone or len(full.jobs) <= len(awaited) + len(full.open_jobs)
