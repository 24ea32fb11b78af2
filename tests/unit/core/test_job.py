from fractions import Fraction

import numpy as np
import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO, Job, StepModel
from tests.support.workloads import GBPS, make_cluster, make_job


def test_work_is_counted_in_worker_slots_exactly() -> None:
    # ResNet-152 of OASiS III-B: 1 s a mini-batch, 241 MB of gradients over 5 Gbps.
    step = StepModel(Fraction(1), gradient_bytes=241_000_000)
    assert step.step_seconds(5 * GBPS) == 1 + Fraction(2 * 8 * 241_000_000, 5 * GBPS)
    made = make_job(
        make_cluster(),
        speed=step,
        epochs=30,
        chunks=20,
        minibatches=100,
        worker_bandwidth=5 * GBPS,
        ps_amounts=None,
    )
    exact = made.work * step.step_seconds(5 * GBPS) / 600
    assert made.required == -(-exact.numerator // exact.denominator)
    assert made.gain(7) == 7
    assert not made.two_rates


def test_a_boundary_is_not_lost_to_rounding() -> None:
    # 10 mini-batches of 0.3 slots are exactly 3 worker-slots; floats would give 4.
    made = make_job(
        make_cluster(), epochs=1, chunks=1, minibatches=10, speed=StepModel(Fraction(180))
    )
    assert made.required == 3
    assert made.shortest_slots == 3


def test_measured_throughput_counts_mini_batches() -> None:
    curve = {1: Fraction(1, 10), 2: Fraction(3, 10), 4: Fraction(1, 5)}
    made = make_job(make_cluster(), speed=curve)
    assert made.required == made.work * MICRO
    assert made.worker_counts.tolist() == [1, 2, 4]
    assert [made.gain(n) for n in (1, 2, 4)] == [60 * MICRO, 180 * MICRO, 120 * MICRO]
    assert made.shortest_slots == 1
    assert made.gain(3) == made.gain(2)  # it may not, but was revised while it did


def test_a_throughput_without_a_finite_time_is_refused() -> None:
    for rate in (5e-324, 1e-300, 1e-10):
        with pytest.raises(InputError, match="more than 5,000,000,000 seconds for a mini-batch"):
            make_job(make_cluster(), speed={1: Fraction(str(rate)), 2: Fraction(1)})
    make_job(make_cluster(), speed={1: Fraction(0), 2: Fraction("2e-9")}, minibatches=1, epochs=1)


def test_two_rates_round_a_gain_up_to_a_millionth() -> None:
    step = StepModel(Fraction(1, 3), gradient_bytes=125_000_000)
    made = make_job(make_cluster(), speed=step, internal_bandwidth=40 * GBPS)
    assert made.two_rates
    external = Fraction(600) / (Fraction(1, 3) + 2)
    internal = Fraction(600) / (Fraction(1, 3) + Fraction(2, 40))
    for workers in (1, 2, 3):
        for rate, colocated in ((external, False), (internal, True)):
            gain = made.gain(workers, colocated=colocated)
            assert workers * rate * MICRO <= gain < workers * rate * MICRO + 1
    wide = made.max_workers
    assert made.shortest_slots == -(-made.required // made.gain(wide))
    assert made.min_slots_colocated == -(-made.required // made.gain(wide, colocated=True))
    long = make_job(make_cluster(), speed=step, internal_bandwidth=40 * GBPS, epochs=1000)
    assert long.min_slots_colocated < long.shortest_slots


def test_parameter_servers_follow_6() -> None:
    made = make_job(make_cluster(), chunks=9, worker_bandwidth=3 * GBPS, ps_bandwidth=5 * GBPS)
    assert made.ps_counts.tolist() == [-(-3 * n // 5) for n in range(1, 10)]
    assert make_job(make_cluster(), ps_amounts=None).ps_counts.tolist() == [0, 0, 0, 0]


def test_slow_parameter_servers_are_refused() -> None:
    with pytest.raises(InputError, match=r"raise ps\.bandwidth"):
        make_job(make_cluster(), worker_bandwidth=5 * GBPS, ps_bandwidth=3 * GBPS)


def test_impossible_ranges_are_refused() -> None:
    with pytest.raises(InputError, match="no number of workers"):
        make_job(make_cluster(), speed={1: Fraction(1)}, worker_range=(2, 4))
    with pytest.raises(InputError, match="takes no time"):
        make_job(make_cluster(), speed=StepModel(Fraction(0)))
    with pytest.raises(InputError, match="too large"):
        make_job(make_cluster(), speed={1: Fraction(1)}, epochs=10**15)


def test_a_record_rebuilds_the_job() -> None:
    made = make_job(make_cluster(), "a", arrival=4, tenant="vision")
    again = Job.from_record(made.record())
    assert again.record() == made.record()
    assert (again.worker == made.worker).all()
    assert not again.worker.flags.writeable
    assert again.utility == made.utility
    assert np.array_equal(again.gains, made.gains)
