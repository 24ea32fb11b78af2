"""Stored and sent records keep their tags and keys if a class or an attribute is renamed.

``SHADOWPRICE_WRITE_RECORDS=1 pytest tests/golden/test_records.py`` records them again, for a change
of a format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from shadowprice.core.bag import Bag, BagTaskGroup, DurationDistribution, TaskCopies
from shadowprice.core.budget import Budget
from shadowprice.core.cluster import Role, Tenant
from shadowprice.core.events import (
    Acknowledged,
    CapacityChanged,
    Charge,
    Commit,
    Decision,
    Displace,
    DriverEvent,
    Drop,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobStarted,
    Pause,
    Place,
    ProgressMeasured,
    Promise,
    Queue,
    Reject,
    Resize,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
    Start,
    StartFailed,
    Stop,
    TimespanChanged,
)
from shadowprice.core.job import build_bag_job
from shadowprice.core.length_history import LengthPrediction
from shadowprice.core.policy import Capabilities, Status
from shadowprice.core.program import Program
from shadowprice.core.quote import Quote, QuoteAnswer
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.utility import Deadline, Sigmoid
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.records import (
    cluster_from_record,
    cluster_record,
    decision_from_record,
    decision_record,
    event_from_record,
    event_record,
)
from shadowprice.engine.snapshot import (
    _command_from_record,
    _command_record,
    _job_from_record,
    _job_record,
)
from shadowprice.executors.contract import GenerationSpec, ServerAllocation
from shadowprice.service.clock import SECOND, SlotCalendar
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.operations import QuoteResult
from tests.support.workloads import make_cluster, make_job

GOLDEN: Final = Path(__file__).with_name("records.json")

CLUSTER: Final = make_cluster(tenants=(Tenant("vision", {"worker": 2}),))
INDEX: Final = CLUSTER.index
REFUSAL: Final = Refusal(RefusalReason.PRICE, "costs more", 1.0, 2.0, 3, "gpu", {"ratio": 2.0})
COPIES: Final = (TaskCopies(0, 3, 2),)
PLACEMENT: Final = Placement.of([(0, 2, 0), (3, 0, 1)])
PLAN: Final = Schedule.of([(1, 0, 2, 0), (1, 3, 0, 1), (2, 0, 2, 0), (2, 3, 0, 1)])
TRAINING: Final = make_job(CLUSTER, "training", utility=Sigmoid(9.0, 0.5, 4.0), tenant="vision")
DISTRIBUTION: Final = DurationDistribution("pareto", {"shape": 2.0, "scale": 30.0}, 30.0, 60.0)
BAG: Final = build_bag_job(
    name="bag",
    arrival=1,
    bag=Bag(
        (
            BagTaskGroup(
                3, DurationDistribution("pareto", {"shape": 2.0, "scale": 30.0}, 30.0, 60.0)
            ),
        ),
        4.5,
        0.1,
        600,
    ),
    worker=CLUSTER.demand({"gpu": 1000}),
    utility=Deadline(5.0, 4.0),
    before_arrival=0.25,
)
PROGRAM: Final = Program(("python", "train.py"), {"SEED": "1"}, "/work", 2, 20.0, user="ml")

EVENTS: Final[tuple[DriverEvent, ...]] = (
    ServerLost(1, "gpu-0"),
    ServerBack(1, "gpu-0"),
    CapacityChanged(
        1,
        {"new": ServerState(Role.ANY, {"gpu": 4000}, drained=True, cost=1.5), "gpu-1": None},
        (Tenant("vision", {"worker": 3}),),
        Fraction(20),
        True,  # positions follow the class
    ),
    TimespanChanged(1, 40),
    JobCancelled(1, "training"),
    JobRevised(1, TRAINING),
    JobFailed(1, "training", 2, "exit status 1", 3),
    StartFailed(1, "training", 2, "no such image"),
    JobStarted(2, "training", 2, 1),
    JobEnded(1, "training", 2),
    ProgressMeasured(1, {"training": (2, 1_500_000)}),
    Acknowledged(1, (4, 5)),
    JobsArrived(1, (TRAINING, BAG)),
    SlotBegan(1),
    SlotEnded(1, {"training": 7}, {"bag": (1, 0)}),
)
DECISIONS: Final[tuple[Decision, ...]] = (
    Commit("training", PLAN, 7.0, 9.0, 2.0, COPIES, 1.5, 7.5, (1.0, 1.0)),
    Reject("training", REFUSAL),
    Queue("training", "no promise"),
    Promise("training", 5, 4, 7.0, 9.0, 2.0, "replanned", COPIES),
    Place("training", PLACEMENT, COPIES),
    Pause("training"),
    Drop("training", REFUSAL),
    Displace("training", "a running job keeps its place"),
    Charge("training", 1, "vision", "speech", {"worker": 3}),
)
ORDERS: Final = (
    Start(
        1,
        "training",
        PLACEMENT,
        servers=("gpu-0", "net-0"),
        copies=COPIES,
        plan=2,
        id=3,
        generation=1,
        after=(1, 2),
        frees=("gpu-1",),
    ),
    Resize(1, "training", PLACEMENT, servers=("gpu-0", "net-0"), id=4, generation=2),
    Stop(1, "training", True, id=5, generation=2, frees=("gpu-0",)),  # as above
)
STATES: Final = (
    JobRecord(
        TRAINING, 1, Status.ADMITTED, 3, 1, None, PLAN, PLACEMENT, 5, None, 1,
        measured=2, generation=3, failures=4, last_start=5, commitment=6, generation_plan=7,
    ),
    JobRecord(BAG, 2, Status.QUEUED, copies=COPIES, unfinished=[2], finished=[1]),
    JobRecord(TRAINING, 3, Status.REFUSED, refusal=REFUSAL),
)  # fmt: skip
SPEC: Final = GenerationSpec(
    3, "training", 1, (ServerAllocation("gpu-0", 2), ServerAllocation("net-0", 0, 1)), PROGRAM,
    {"gpu": 1000}, {"cpu": 2000}, "/checkpoints", "http://127.0.0.1/progress", "secret", 12.5,
    "vision", {"gpu-0": ("0", "1")}, {"team": "a"}, "store-1",
)  # fmt: skip
VIEW: Final = JobView(
    1, "vision/training", "training", "vision", State.RUNNING, 10, 11, 1, 5, 4, 12, 2, 40, 6, 13,
    29, 30, 0.5, 8.0, 2, 1, 14, 15, 2, 1, ("gpu-0",), 7.0, 9.0, 2.0, {"code": "displaced"},
    {"code": "StartRefused", "message": "no right"}, 1, 2, "resnet", (2, 4),
    predicted=LengthPrediction(300.0, 3, 0.75), first_length=200.0, length=(310.0, 1000, 1, 2),
    reports=True,
    covered=24, covered_before=25, blamed=1, price=16, paid_at=17, planned=18,
    unused=((1, 2, 3),), held=19, used=20, overrun=26, overrun_slots=27, slot_price=28, refund=21,
    decided=22, closed=23,
)  # fmt: skip
QUOTES: Final = (
    Quote("training", 1, QuoteAnswer.ADMITTED, 5, 9.0, 2.0, ("bag",), message="now", expected=3),
    Quote("training", 1, QuoteAnswer.REFUSED, refusal=REFUSAL),
)
CALENDAR: Final = SlotCalendar(0, Fraction(60 * SECOND))
CAPABILITIES: Final = Capabilities(elastic=True, window=2)
BUDGET: Final = Budget(10**6, 3600, 7200, 5)


def records() -> Mapping[str, Any]:
    """Return one record of everything that is stored or sent under the names of classes."""
    names = CLUSTER.names
    return {
        "events": [event_record(event) for event in EVENTS],
        "decisions": [decision_record(decision, names) for decision in DECISIONS],
        "orders": [_command_record(order) for order in ORDERS],
        "states": [_job_record(state, names) for state in STATES],
        "cluster": cluster_record(CLUSTER),
        "capabilities": asdict(CAPABILITIES),
        "program": PROGRAM.record(),
        "generation": SPEC.record(),
        "view": json.loads(VIEW.stored()),
        "client_view": VIEW.to_resource().record,
        "quotes": [
            QuoteResult(
                quote, None if quote.refusal is None else quote.refusal.record(), quote.message
            )
            .to_resource(quote.job, CALENDAR, names=True)
            .record
            for quote in QUOTES
        ],
        "budget": BUDGET.record(),
    }


def test_records_are_as_recorded() -> None:
    text = json.dumps(records(), indent=1, sort_keys=True) + "\n"
    if "SHADOWPRICE_WRITE_RECORDS" in os.environ:
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text("utf-8")


@pytest.mark.parametrize(
    ("union", "samples"),
    [(DriverEvent, EVENTS), (Decision, DECISIONS)],
    ids=["events", "decisions"],
)
def test_there_is_one_of_each(union: Any, samples: tuple[object, ...]) -> None:
    assert {type(sample) for sample in samples} == set(get_args(union))


def test_recorded_values_are_read_back() -> None:
    """A recorded value, read and written again, is the same text."""
    recorded = json.loads(GOLDEN.read_text("utf-8"))
    names = CLUSTER.names
    again = {
        "events": [event_record(event_from_record(event)) for event in recorded["events"]],
        "decisions": [
            decision_record(decision_from_record(decision, INDEX), names)
            for decision in recorded["decisions"]
        ],
        "orders": [
            _command_record(_command_from_record(order, INDEX)) for order in recorded["orders"]
        ],
        "states": [
            _job_record(_job_from_record(state, INDEX), names) for state in recorded["states"]
        ],
        "cluster": cluster_record(cluster_from_record(recorded["cluster"])),
        "capabilities": asdict(Capabilities(**recorded["capabilities"])),
        "program": Program.from_record(recorded["program"]).record(),
        "generation": GenerationSpec.from_record(recorded["generation"]).record(),
        "view": json.loads(JobView.from_json(json.dumps(recorded["view"])).stored()),
        "budget": Budget.from_record(recorded["budget"]).record(),
    }
    assert json.loads(json.dumps(again)) == {key: recorded[key] for key in again}
