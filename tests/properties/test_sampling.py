"""Samples of each step: every one once an epoch, however a job is resized."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.training import Order, TrainingError
from tests.support.examples import example_count


@st.composite
def orders(draw: st.DrawFn) -> Order:
    batch = draw(st.integers(1, 40))
    return Order(
        samples=draw(st.integers(1, 200)),
        batch=batch,
        parts=draw(st.integers(1, batch)),
        seed=draw(st.integers(0, 5)),
        shuffle=draw(st.booleans()),
    )


histories = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30), st.integers(0, 10)))
"""Workers, steps that they do, and how many of those are lost when they are killed."""


@settings(max_examples=example_count(150), deadline=None)
@given(order=orders(), history=histories)
def test_every_sample_comes_once_an_epoch_with_any_change_of_workers(
    order: Order, history: list[tuple[int, int, int]]
) -> None:
    seen: dict[int, Counter[int]] = {}
    step = 0
    for workers, steps, lost in [*history, (3, 2 * order.steps, 0)]:
        for done in range(step, step + steps):
            shares = [order.worker_parts(done, rank, workers) for rank in range(workers)]
            parts = [part for share in shares for part in share if part.weight]
            seen[done] = Counter(int(sample) for part in parts for sample in part.samples)
            assert sum(part.weight for part in parts) == pytest.approx(1.0, rel=1e-12)
            assert [part.number for part in parts] == list(range(len(parts)))
            assert all(len(share) >= 1 and len(part.samples) for share in shares for part in share)
            most = max(len([part for part in share if part.weight]) for share in shares)
            assert most == -(-len(parts) // workers)
        step += max(0, steps - lost)  # steps after the newest checkpoint are repeated
    for epoch in range(step // order.steps):
        steps_of = range(epoch * order.steps, (epoch + 1) * order.steps)
        once = sum((seen[entry] for entry in steps_of), Counter())
        assert once == Counter(range(order.samples))


@settings(max_examples=example_count(60), deadline=None)
@given(order=orders(), step=st.integers(0, 10**9))
def test_parts_are_the_same_for_any_number_of_workers(order: Order, step: int) -> None:
    expected = [part.samples.tolist() for part in order.split_step(step)]
    for workers in (1, 2, 3, 7, 50):
        shares = [order.worker_parts(step, rank, workers) for rank in range(workers)]
        got = [part.samples.tolist() for share in shares for part in share if part.weight]
        assert got == expected
    largest = -(-order.batch // order.parts)
    assert max(map(len, expected)) <= largest
    assert max(map(len, expected)) - min(map(len, expected)) <= 1


def test_epochs_are_shuffled_differently_and_by_the_seed() -> None:
    order = Order(100, 10)
    epochs = [np.concatenate([order.minibatch(10 * e + s) for s in range(10)]) for e in range(2)]
    assert not np.array_equal(*epochs)
    assert not np.array_equal(order.minibatch(0), Order(100, 10, seed=1).minibatch(0))
    assert np.array_equal(Order(100, 10, shuffle=False).minibatch(11), np.arange(10, 20))


def test_a_last_minibatch_that_is_not_full_may_be_left_out() -> None:
    assert [len(Order(25, 10).minibatch(step)) for step in range(4)] == [10, 10, 5, 10]
    assert [len(Order(25, 10, whole=True).minibatch(step)) for step in range(3)] == [10, 10, 10]


def test_random_numbers_have_a_seed_of_their_own_in_every_part() -> None:
    order = Order(100, 10, parts=5)
    keys = {
        order.part_seed(step, part, use)
        for step in range(20)
        for part in range(5)
        for use in (0, 1)
    }
    assert len(keys) == 200
    assert keys.isdisjoint({Order(100, 10, seed=1).part_seed(step, 0) for step in range(20)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples: expected an integer from 1 to .*, got 0"),
        ({"batch": -1}, "batch: expected an integer from 1 to .*, got -1"),
        ({"parts": 0}, "parts: expected an integer from 1 to .*, got 0"),
        ({"parts": 65}, "parts: expected at most batch = 64, got 65"),
        ({"seed": -1}, "seed: expected an integer from 0 to .*, got -1"),
        (
            {"samples": 63, "whole": True},
            "samples: expected at least batch = 64, got 63; lower batch",
        ),
    ],
)
def test_orders_that_cannot_be_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Order(**{"samples": 1000, "batch": 64, **changes})


def test_numbers_of_numpy_are_taken_as_pythons_own() -> None:
    order = Order(np.int64(10), np.int32(4), np.int8(2), np.uint8(1), np.bool_(False), whole=True)
    assert [type(entry) for entry in order.state().values()] == [int] * 4 + [bool] * 2
    with pytest.raises(TrainingError, match=r"batch: expected an integer, got 4\.0"):
        Order(10, 4.0, 2)  # type: ignore[arg-type]


def test_a_checkpoint_of_another_order_is_refused() -> None:
    Order(100, 10).check(Order(100, 10).state())
    with pytest.raises(
        TrainingError, match="batch: the checkpoint has 10, the script 20; restore batch, or submit"
    ):
        Order(100, 20).check(Order(100, 10).state())
