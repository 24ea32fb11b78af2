"""A small soak; ``make test SUITE=soak`` runs it for half an hour."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.soak import Growth, Soak, SoakOptions, jobs_ended_twice


@pytest.mark.extended
@pytest.mark.processes
def test_small_soak_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    options = SoakOptions(jobs=240, minutes=0.05, kills=2, max_open_jobs=30)
    lines: list[str] = []
    soak = Soak(tmp_path, options, lines.append)
    assert asyncio.run(soak.run()) == [], "\n".join(lines)
    assert len(soak.lives) >= 3
    assert len(soak.closed) == 240
    # Otherwise it shows little.
    assert soak.counts["bursts tenant-limit"]
    assert soak.counts["finished"] > 60
    assert soak.counts["viewers"]


def test_a_late_exit_ends_a_job_once(tmp_path: Path) -> None:
    soak = Soak(tmp_path, SoakOptions(jobs=4), lambda _line: None)
    for job, kind in [
        ("late", "given-up"), ("once", "finished"), ("late", "finished"),
        ("twice", "finished"), ("twice", "finished"), ("odd", "finished"), ("odd", "given-up"),
    ]:  # fmt: skip
        soak._close(job, kind)
    assert jobs_ended_twice(soak.closed) == {
        "twice": ["finished", "finished"],
        "odd": ["finished", "given-up"],
    }
    counts = {kind: soak.counts[kind] for kind in ("finished", "given-up", "late exits")}
    assert counts == {"finished": 5, "given-up": 1, "late exits": 1}


def test_memory_growth_is_distinguished_from_noise() -> None:
    draw = random.Random(1)
    noisy = [draw.uniform(1.8, 2.4) for _ in range(30)]
    flat = Growth.of(noisy)
    assert flat is not None
    assert not flat.is_real
    grown = Growth.of([value * (1 + number / 40) for number, value in enumerate(noisy)])
    assert grown is not None
    assert grown.is_real
    slightly = Growth.of([100.0] * 20 + [104.0] * 10)
    assert slightly is not None
    assert not slightly.is_real
    first_third = Growth.of([1.0] * 10 + [100.0] * 20)
    assert first_third is not None
    assert not first_third.is_real
    assert Growth.of(noisy[:8]) is None
