"""Experiments on the cost and benefit of task copies (CSD); the paper has no figures."""

from __future__ import annotations

from shadowprice.experiments.cloning import figures
from shadowprice.experiments.framework import Experiment

SOURCE = "CSD, speculative cloning with a dual approach (2017)"
NO_MEASUREMENTS = "The paper reports no measurements. "

EXPERIMENTS = (
    Experiment(
        name="cloning-deadline",
        title="Machine time and copies over the deadline and the miss probability",
        source=f"{SOURCE}, problem (1)",
        reported=NO_MEASUREMENTS + "Copies fall with the deadline and with epsilon, by Theorem 1.",
        measure=figures.measure_deadline,
        draw=figures.draw_deadline,
    ),
    Experiment(
        name="cloning-tail",
        title="Machine time and copies over the tail order",
        source=f"{SOURCE}, problem (1)",
        reported=NO_MEASUREMENTS + "It assumes that copies always cost machine time.",
        measure=figures.measure_tail,
        draw=figures.draw_tail,
    ),
    Experiment(
        name="cloning-relaxed",
        title="How often copies under the relaxed constraint (7) miss too often",
        source=f"{SOURCE}, (6) and (7)",
        reported=NO_MEASUREMENTS + "(7) is introduced as a relaxation of (6).",
        measure=figures.measure_relaxed,
        draw=figures.draw_relaxed,
    ),
    Experiment(
        name="cloning-theorem",
        title="Cost of Theorem 1 over the optimum, by spread of mean durations",
        source=f"{SOURCE}, Theorem 1",
        reported="Theorem 1 is stated for any means; it assumes equal marginal costs.",
        measure=figures.measure_theorem,
        draw=figures.draw_theorem,
    ),
    Experiment(
        name="cloning-load",
        title="Flowtime and machine time over load, under four rules for a free machine",
        source=f"{SOURCE}, section 1, heavily loaded regime",
        reported=NO_MEASUREMENTS + "Many duplicates under heavy load can make flowtime longer.",
        measure=figures.measure_load,
        draw=figures.draw_load,
        size=(11.0, 7.6),
    ),
    Experiment(
        name="cloning-workers",
        title="Flowtime and machine time over load, with measured times of two training jobs",
        source=f"{SOURCE}, section 1; times: Alibaba GPU cluster trace 2020, mini-batch-time",
        reported=NO_MEASUREMENTS,
        measure=figures.measure_workers,
        draw=figures.draw_workers,
        size=(11.0, 7.6),
    ),
    Experiment(
        name="cloning-processes",
        title="Bags on real processes: measured and predicted tail",
        source=f"{SOURCE}, (3) and (5)",
        reported=NO_MEASUREMENTS,
        measure=figures.measure_processes,
        draw=figures.draw_processes,
    ),
)
