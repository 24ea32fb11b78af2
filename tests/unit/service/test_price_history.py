"""Past prices: thinned with age, and returned at even distances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import select

from shadowprice.core.events import JobsArrived, SlotBegan
from shadowprice.core.policy import PolicyContext
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.engine.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, SlotCalendar
from shadowprice.service.state.price_history import HOUR, MINUTE, history, purge_prices
from shadowprice.service.state.prices import prices
from shadowprice.service.store import Store, tables

DAY = 24 * HOUR


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(str(tmp_path / "data"))
    assert made.open()
    yield made
    made.close()


def fill(store: Store, moments: list[int]) -> None:
    rows, last = [], -1
    for moment in moments:
        grain = (
            2 if moment // HOUR != last // HOUR else 1 if moment // MINUTE != last // MINUTE else 0
        )
        last = moment
        rows.append(
            {
                "at": moment,
                "slot": moment // SECOND,
                "grain": grain,
                "record": json.dumps({"k": {"gpu": {"used": 1.0}}}),
            }
        )
    with store.transaction() as connection:
        store.write(connection, tables.prices.insert(), rows)


def kept(store: Store) -> list[int]:
    with store.reading() as connection:
        return list(
            connection.execute(select(tables.prices.c.at).order_by(tables.prices.c.id)).scalars()
        )


def test_old_samples_become_one_a_minute_and_then_one_an_hour(store: Store) -> None:
    now = 100 * DAY
    recent = list(range(now - HOUR // 2, now, 20 * SECOND))
    yesterday = list(range(now - DAY, now - DAY + 2 * HOUR, 20 * SECOND))
    lately = list(range(now - 10 * DAY, now - 10 * DAY + 3 * HOUR, 5 * MINUTE))
    ages = list(range(now - 50 * DAY, now - 49 * DAY, HOUR))
    fill(store, [*ages, *lately, *yesterday, *recent])
    for _ in range(5):
        purge_prices(store, now, now - 30 * DAY)
    left = kept(store)
    assert [at for at in left if at >= now - HOUR] == recent
    assert [at for at in left if now - 2 * DAY < at < now - HOUR] == [
        at for at in yesterday if at % MINUTE == 0
    ]
    assert [at for at in left if at < now - 2 * DAY] == [at for at in lately if at % HOUR == 0]


def test_history_is_evenly_sampled_and_ordered(store: Store) -> None:
    fill(store, list(range(0, 10 * HOUR, 20 * SECOND)))
    calendar = SlotCalendar(0, Fraction(SECOND))
    with store.reading() as connection:
        samples = history(connection, calendar, 0, 100)
        slots = [row.slot for row in samples]
        assert slots == sorted(slots)
        assert 50 < len(slots) <= 100
        gaps = [b - a for a, b in pairwise(slots)]
        assert len(set(gaps)) == 1
        assert slots[-1] - slots[0] > 0.9 * 10 * 3600
        recent = history(connection, calendar, 10 * HOUR - 5 * MINUTE, 100)
        assert len(recent) == 15
        assert recent[0].kinds == {"k": {"gpu": {"used": 1.0}}}


def test_jobs_without_a_kind_of_gpu_use_the_kind_of_their_server() -> None:
    servers = [{"name": kind, "capacity": {f"gpu/{kind}": 4}} for kind in "ab"]
    cluster = ClusterSpec.model_validate({"slot": "1h", "servers": servers}).resolve()
    engine = Engine(cluster, PolicyChoice("fifo").build(PolicyContext(cluster, (), None, 0)))
    jobs = [
        JobSpec.model_validate(
            {"name": name, "steps": 900, "minibatch_time": "1min", "worker": worker}
        ).resolve(cluster)
        for name, worker in (("kind", {"gpu/a": 3}), ("any", {"gpu": 4}))
    ]
    engine.handle(JobsArrived(0, tuple(jobs)))
    engine.handle(SlotBegan(0))
    [slot] = prices(engine, SlotCalendar(0, Fraction(SECOND)), "fifo", 1).slots
    assert slot.kinds == {
        "a": {"gpu/a": {"used": 0.75}, "gpu": {"used": 0.75}},
        "b": {"gpu/b": {"used": 1.0}, "gpu": {"used": 1.0}},
    }
