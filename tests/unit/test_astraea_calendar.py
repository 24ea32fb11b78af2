import itertools

import pytest

from shadowprice.core.errors import InputError
from shadowprice.policies.astraea.calendar import batch_of, decision_slot, rounds_of
from shadowprice.policies.astraea.prices import price_table, rounds_of_lemma


def test_batches_collect_arrivals_between_powers_of_two() -> None:
    # The paper's r in [tau_{l-1}, tau_l), tau_l = 2^l, is our slot r - 1.
    assert [batch_of(arrival) for arrival in range(8)] == [1, 2, 2, 3, 3, 3, 3, 4]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rounds_follow_each_other_across_batches(count: int) -> None:
    rounds = [turn for batch in range(1, 7) for turn in rounds_of(batch, count)]
    assert all(a.end == b.start for a, b in itertools.pairwise(rounds))
    assert all(turn.end - turn.start == 2**turn.batch for turn in rounds)
    # No job can run before its batch is decided, and no batch before its jobs arrived.
    for turn in rounds:
        assert turn.start >= decision_slot(turn.batch)
        latest = max(a for a in range(2**7) if batch_of(a) == turn.batch)
        assert latest < decision_slot(turn.batch)


def test_the_price_function_passes_through_the_example() -> None:
    assert price_table(16, 8)[[0, 2, 8]].tolist() == [0, 1_000_000, 15_000_000]
    assert price_table(16, 4)[1] == 1_000_000
    assert price_table(16, 0).tolist() == [0]
    with pytest.raises(InputError, match="theta is 1"):
        price_table(1, 8)


def test_lemma_1_s_rounds() -> None:
    # sigma = 2 (ln 16 + ln 16) = 11.09; ln(420 / 50) / -ln(1 - 1 / sigma) = 22.52: 22 + 1.
    assert rounds_of_lemma(420, 50, 16, 16) == 23
    assert rounds_of_lemma(50, 50, 16, 16) == 1
    assert rounds_of_lemma(400, 50, 1.2, 1.2) == 1
    with pytest.raises(InputError, match="least utility"):
        rounds_of_lemma(400, 0, 16, 16)
