import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.utility import (
    FAMILIES,
    Constant,
    Deadline,
    Linear,
    Power,
    Reciprocal,
    Sigmoid,
    Utility,
    utility_record,
    utility_value,
)
from tests.support.examples import example_count

positive = st.floats(0.01, 1e4)
DRAWS = {
    "constant": st.builds(Constant, positive),
    "sigmoid": st.builds(Sigmoid, positive, st.floats(0, 6), st.floats(0, 50)),
    "reciprocal": st.builds(Reciprocal, positive),
    "linear": st.builds(Linear, positive, st.floats(-100, 0)),
    "power": st.builds(Power, positive, st.floats(0, 4)),
    "deadline": st.builds(Deadline, positive, st.floats(0, 50)),
}
utilities = st.one_of(*DRAWS.values())


def test_every_family_is_drawn_and_described() -> None:
    assert DRAWS.keys() == FAMILIES.keys()
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
    assert not [kind for kind in FAMILIES if f"\n| `{kind}` | `" not in page]


@settings(deadline=None, derandomize=True, max_examples=example_count(200))
@given(utilities)
def test_utilities_never_rise_and_never_fall_below_zero(utility: Utility) -> None:
    values = utility.values(np.arange(60))
    assert (values >= 0).all()
    assert (np.diff(values) <= 1e-12 * values[:-1]).all()


@settings(deadline=None, derandomize=True, max_examples=example_count(200))
@given(utilities)
def test_logarithms_agree_where_nothing_underflows(utility: Utility) -> None:
    values = utility.values(np.arange(20))
    logs = utility.log_values(np.arange(20))
    seen = values > 1e-290
    assert np.allclose(np.exp(logs[seen]), values[seen], rtol=1e-9)
    assert np.isneginf(logs[values == 0]).all() or isinstance(utility, Sigmoid)


def test_the_sigmoid_of_the_evaluation_section() -> None:
    sigmoid = Sigmoid(value=50, decay=5, target=10)
    assert utility_value(sigmoid, 10) == 25
    assert utility_value(Sigmoid(50, 0, 10), 300) == 25
    # f(300) underflows as a number; its logarithm does not (papers' README, reading 3).
    assert sigmoid.log_values(np.array([300.0]))[0] == pytest.approx(math.log(50) - 5 * 290)
    assert utility_value(sigmoid, 300) == 0 or utility_value(sigmoid, 300) < 1e-290


def test_edges_of_the_families() -> None:
    assert utility_value(Power(8, 2), 0) == 64  # done in its arrival slot: d counts as 1
    assert utility_value(Deadline(3, by=4), 4) == 3
    assert utility_value(Deadline(3, by=4), 5) == 0
    assert utility_value(Linear(3, -1), 7) == 0
    assert utility_value(Reciprocal(8), 1) == 4


@pytest.mark.parametrize(
    "utility",
    [
        Constant(2.0),
        Sigmoid(2.0, 1.0, 3.0),
        Reciprocal(2.0),
        Linear(2.0, -1.0),
        Power(2.0, 1.0),
        Deadline(2.0, 1.0),
    ],
)
def test_records_rebuild_the_utility(utility: Utility) -> None:
    record = utility_record(utility)
    family = FAMILIES[str(record.pop("kind"))]
    assert family(**record) == utility
