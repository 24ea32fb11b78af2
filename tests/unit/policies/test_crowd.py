"""A table that jobs join one by one has the same values as one built at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.reactive.risk_reward import Candidates, admission, appraise
from shadowprice.kernels.reactive.worth import TABULATED, Worths
from shadowprice.policies.baselines.rrh import OpenJobAppraisal
from tests.support.examples import example_count


def candidates(rng: np.random.Generator, jobs: int) -> Candidates:
    """Return a table of jobs, many of them equal, so that expiries and delays tie."""
    alike = rng.integers(0, max(1, jobs // 2), jobs)
    worths = Worths(
        rng.integers(0, TABULATED, jobs)[alike],
        rng.choice([0.0, 0.5, 1.0, 7.0, 30.0], (jobs, 3))[alike],
        np.zeros((jobs, 0), np.int64),
        np.zeros((jobs, 0)),
    )
    return Candidates(
        worths,
        rng.integers(0, 5, jobs),
        rng.integers(1, 9, jobs)[alike],
        rng.choice([0.05, 0.1, 0.4], jobs)[alike],
    )


@settings(deadline=None, derandomize=True, max_examples=example_count(80))
@given(st.integers(0, 2**32 - 1))
def test_adding_jobs_singly_equals_appraising_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 90))
    table, slot = candidates(rng, jobs), 5
    rows = rng.permutation(jobs)
    begin = int(rng.integers(0, jobs))
    dense_jobs = OpenJobAppraisal(slot, table, rows[:begin])
    there = rows[:begin].tolist()
    for row in rows[begin:].tolist():
        dense_jobs.add(row, table)
        there.append(row)
        present = np.array(there, dtype=np.int64)
        appraised = appraise(slot, present, table, 0.3, 0.01)
        expected = admission(len(present) - 1, present, table, appraised)
        assert dense_jobs.admission(table, 0.3, 0.01) == expected
        assert dense_jobs.count == len(there)
        if rng.random() < 0.4:
            dense_jobs.remove_last()
            there.pop()
