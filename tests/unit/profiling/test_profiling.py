"""Step times from reports, and models compared with speeds."""

from __future__ import annotations

import math
import random
import secrets
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.profiling.fit import (
    BackwardsError,
    Pace,
    Speed,
    _warm_up_intervals,
    fit_linear,
    fit_serial,
)
from shadowprice.profiling.running import memory_by_role


def _paced(steps: list[float], every: int = 1) -> Pace:
    """Return the reports of a job with steps of equal length, one report in ``every`` steps."""
    pace, now = Pace(), 100.0
    for number, seconds in enumerate(steps, 1):
        now += seconds
        if number % every == 0:
            pace.add(now, number)
    return pace


def test_even_steps_are_known_exactly() -> None:
    step = _paced([0.25] * 40).step_time()
    assert step is not None
    assert step.seconds == pytest.approx(0.25)
    assert step.half_width == pytest.approx(0.0, abs=1e-9)
    assert step.per_second == pytest.approx(4.0)
    assert step.minibatches + step.warm_up == 39  # the first report ends the start


def test_the_warm_up_is_left_out() -> None:
    luck = random.Random(1)
    cold = [1.0] * 15
    warm = [max(0.01, luck.gauss(0.1, 0.01)) for _ in range(150)]
    step = _paced(cold + warm).step_time()
    assert step is not None
    assert step.warm_up == pytest.approx(14, abs=6)
    assert step.seconds == pytest.approx(0.1, rel=0.03)
    assert _paced(cold + warm, every=5).step_time().seconds == pytest.approx(0.1, rel=0.03)  # type: ignore[union-attr]  # there are enough


def test_the_interval_holds_as_often_as_it_says() -> None:
    # Steps that drift, so that neighbours are alike: the hardest case for a mean.
    missed = 0
    for seed in range(400):
        luck, off = random.Random(seed), 0.0
        steps = []
        for _ in range(300):
            off = 0.5 * off + luck.gauss(0.0, 0.02)
            steps.append(0.2 + off)
        step = _paced(steps, every=2).step_time()
        assert step is not None
        missed += abs(step.seconds - 0.2) > step.half_width
    # 20 are expected; the limit is a little over twice that, because the warm-up is chosen too.
    assert missed <= 45


def test_too_few_reports_measure_nothing() -> None:
    assert Pace().step_time() is None
    assert _paced([0.1] * 6).step_time() is None
    pace = Pace()
    for _ in range(50):
        pace.add(3.0, 7)
    assert pace.reports == 1


def test_reports_that_go_back_are_refused() -> None:
    pace = _paced([0.1] * 5)
    with pytest.raises(BackwardsError, match="reported 3 mini-batches after 5"):
        pace.add(200.0, 3)


@given(
    tau=st.floats(1e-3, 10.0),
    gradient=st.integers(1_000, 10**9),
    bandwidth=st.floats(1e6, 1e11),
    counts=st.lists(st.integers(2, 64), min_size=1, max_size=6, unique=True),
)
def test_the_linear_model_is_found_again(
    tau: float, gradient: int, bandwidth: float, counts: list[int]
) -> None:
    exchange = 16.0 * gradient / bandwidth
    measured = [Speed(1, 0, 1.0 / tau)]
    measured += [Speed(n, 0, n / (tau + exchange)) for n in counts]
    fit = fit_linear(measured, gradient_bytes=gradient)
    assert fit.minibatch_time == pytest.approx(tau)
    assert fit.step_time == pytest.approx(tau + exchange)
    if exchange > 1e-3 * tau:
        assert fit.bandwidth == pytest.approx(bandwidth, rel=1e-6)
    assert fit.quality.largest < 1e-9
    assert fit.quality.verdict == ("fits" if len(counts) > 1 else "untried")


def test_servers_make_a_lone_worker_exchange_too() -> None:
    measured = [Speed(n, 1, n / 0.3) for n in (1, 2, 4)]
    fit = fit_linear(measured, gradient_bytes=10**6, minibatch_time=0.2)
    assert fit.step_time == pytest.approx(0.3)
    assert fit.bandwidth == pytest.approx(16e6 / 0.1)
    assert fit_linear(measured).minibatch_time is None
    assert fit_linear(measured, gradient_bytes=10**6).bandwidth is None


@given(serial=st.floats(0.0, 5.0), shared=st.floats(0.01, 5.0))
def test_a_part_that_is_not_shared_is_found_again(serial: float, shared: float) -> None:
    measured = [Speed(n, 0, 1.0 / (serial + shared / n)) for n in (1, 2, 3, 8)]
    fit = fit_serial(measured)
    assert fit is not None
    assert fit.serial == pytest.approx(serial, abs=1e-9)
    assert fit.shared == pytest.approx(shared)
    assert fit.quality.verdict == "fits"
    assert fit_serial(measured[:2]) is None


def test_jobs_that_do_not_fit_are_reported() -> None:
    measured = [Speed(n, 0, 1.0 / (0.05 + 0.05 / n)) for n in (1, 2, 4, 8)]
    fit = fit_linear(measured)
    assert fit.quality.verdict == "does not fit"
    off = [
        said / one.per_second - 1 for said, one in zip(fit.quality.predicted, measured, strict=True)
    ]
    assert fit.quality.errors == pytest.approx(off)
    assert fit.quality.determination is not None
    assert fit.quality.determination < 0.9
    # No other step time is closer, by squares of relative errors.
    least = sum(error**2 for error in off)
    for factor in (0.99, 1.01):
        others = [
            one.workers / (fit.step_time * factor) / one.per_second - 1 for one in measured[1:]
        ]
        assert sum(error**2 for error in others) > least


def test_speeds_that_fall_have_no_shared_part() -> None:
    measured = [Speed(1, 0, 4.0), Speed(2, 0, 2.0), Speed(4, 0, 1.0)]
    fit = fit_serial(measured)
    assert fit is not None
    assert fit.shared == 0.0
    assert fit.quality.verdict == "does not fit"
    assert math.isfinite(fit.quality.largest)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_what_a_process_may_map_not_only_what_it_touched() -> None:
    code = """
import mmap, sys
with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
    print("mapped", flush=True)
    sys.stdin.read()
"""
    mark = secrets.token_hex()
    variables = {"SHADOWPRICE_EXECUTION": mark, "SHADOWPRICE_ROLE": "ps"}
    words = [sys.executable, "-S", "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=variables, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"mapped\n"
        result = memory_by_role(mark)
        process.stdin.close()
    assert result.keys() == {"ps"}
    # The other memory of an interpreter, which this process doesn't map.
    assert 64 << 20 < result["ps"] < 128 << 20


def test_the_warm_up_is_that_of_the_marginal_standard_error() -> None:
    luck = random.Random(2)
    for _ in range(200):
        rates = np.array([luck.expovariate(1.0) for _ in range(luck.randrange(1, 120))])
        rates[: len(rates) // 4] *= 5.0
        errors = [
            float(rates[cut:].var()) / (len(rates) - cut) for cut in range(len(rates) // 2 + 1)
        ]
        assert _warm_up_intervals(rates) == errors.index(min(errors))
