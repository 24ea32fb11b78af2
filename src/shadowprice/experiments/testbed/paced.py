"""Figs. 7 and 8 in real time, with jobs that only keep the stated pace.

The jobs sleep instead of training, so a start takes a small part of a slot. All policies run at the
same time, each under its own service, and the slots of services begin at different times. As
processes of this machine, jobs run in slots of a minute; on Kubernetes and Ray, in slots of six
minutes. On Kubernetes, each service has its own namespace and takes a tenth of the cores and
memory, so that the nodes can hold all services. On Ray only OASiS runs. Each run is simulated with
the same submissions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import polars as pl

from shadowprice.experiments import live
from shadowprice.experiments.figures import draw_predicted_and_real
from shadowprice.experiments.framework import ExperimentSettings, Figure, Tables
from shadowprice.experiments.testbed.measure import InputFiles, scaled
from shadowprice.experiments.testbed.virtual import VARIANTS, Variant

SECONDS: Final = 60  # length of a slot for jobs that are processes of this machine
NODE_SECONDS: Final = 360  # length of a slot on Kubernetes and Ray, where a start takes longer
NODE_SHARE: Final = Fraction(1, 10)
"""Part of a node's cores and memory for each policy on Kubernetes."""

NAMESPACE: Final = "paced-"  # prefix of the namespaces on Kubernetes; the policy's name follows
RESTART: Final = 0.03  # part of a slot that jobs state for a start as processes of this machine
NODE_RESTART: Final = 0.05
"""Part of a slot that jobs state for a start on Kubernetes and Ray, where starts vary more."""

AHEAD: Final = 3.0  # seconds before its slot at which a job is submitted

SCRIPT: Final = r"""
work=$1 pace=$2 dir=$SHADOWPRICE_CHECKPOINT_DIR
[ "$SHADOWPRICE_ROLE" = ps ] && { sleep 86400 & wait; exit 0; }
base=0
[ -f "$dir/step" ] && base=$(cat "$dir/step")
now() {  # milliseconds; `date +%3N` is not portable
    read -r up _ < /proc/uptime
    now=${up%.*}${up#*.}0
}
now; start=$now
reached() {
    now
    done=$((base + (now - start) * SHADOWPRICE_WORKERS / pace))
    [ "$done" -gt "$work" ] && done=$work
}
publish() {
    [ "$SHADOWPRICE_RANK" = 0 ] || return 0
    printf '%s' "$2" > "$1.new" && mv "$1.new" "$1"
}
report() {
    body="{\"generation\": $SHADOWPRICE_GENERATION, \"minibatches\": $done"
    body="$body, \"metrics\": {}, \"checkpoints\": true}"
    if [ -n "$SHADOWPRICE_PROGRESS_FILE" ]; then
        publish "$SHADOWPRICE_PROGRESS_FILE" "$body"
    elif [ "$SHADOWPRICE_RANK" = 0 ]; then
        wget -q -O /dev/null --header "Authorization: Bearer $SHADOWPRICE_PROGRESS_TOKEN" \
            --header "Content-Type: application/json" --post-data "$body" \
            "$SHADOWPRICE_PROGRESS_URL"
    fi
}
leave() {
    reached; publish "$dir/step" "$done"; report; exit 143
}
trap leave TERM
reached
while [ "$done" -lt "$work" ]; do
    sleep 1 & wait $!
    reached; report
done
report
"""
"""A worker: sleeps for the stated time of its mini-batches, saves on SIGTERM, reports.

It needs only a POSIX shell and, without a progress file, wget, so any small image runs it.
"""


POLICIES: Final = ("oasis", "rrh", "drf", "fifo", "dorm", "rolling")


def measure_paced(settings: ExperimentSettings) -> Tables:
    """Run one draw under several policies, and simulate it as it was submitted."""
    live.check_live_jobs()
    target = settings.target or live.ExecutorTarget()
    labels = POLICIES if target.executor != "ray" else ("oasis",)
    variants = [
        replace(candidate, end=False) for candidate in VARIANTS if candidate.label in labels
    ]
    slots = 3 if settings.quick else 10
    local = target.executor == "local"
    seconds = SECONDS if local else NODE_SECONDS
    share = NODE_SHARE if target.executor == "kubernetes" else Fraction(1)
    restart = (RESTART if local else NODE_RESTART) * seconds
    files = scaled(seconds, seed=settings.seed, slots=slots, restart=restart, share=share)
    with ThreadPoolExecutor(len(variants)) as threads:
        lives = list(
            threads.map(
                lambda variant, delay: _run_live(
                    files, variant, settings.seed, _target(target, variant), delay
                ),
                variants,
                # If the slots of all services began together, all jobs would start together, and
                # each start would take as long as all.
                [number * seconds / len(variants) for number in range(len(variants))],
            )
        )
    rows = [
        row
        for variant, live_results in zip(variants, lives, strict=True)
        for row in _rows(files, variant, settings.seed, live_results)
    ]
    jobs = pl.DataFrame(rows, infer_schema_length=None)
    summary = jobs.group_by("policy", maintain_order=True).agg(
        pl.col("utility", "predicted_utility").sum(),
        completed=pl.col("completion").is_not_null().sum(),
        predicted_completed=pl.col("predicted_completion").is_not_null().sum(),
        start=pl.col("start").mean(),
        moves=pl.col("moves").sum(),
    )
    return {"summary": summary, "jobs": jobs}


def _target(target: live.ExecutorTarget, variant: Variant) -> live.ExecutorTarget:
    """Return the executor of a policy's service, with its own namespace and shared folder."""
    if target.executor != "kubernetes":
        return target
    settings = [f"namespace={NAMESPACE}{variant.label}"]
    for setting in target.settings:
        key, value = setting.split("=", 1)
        if key == "shared":
            value = str(Path(value, variant.label))
            Path(value).mkdir(parents=True, exist_ok=True)
        settings.append(f"{key}={value}")
    return replace(target, settings=tuple(settings))


def _run_live(
    files: InputFiles, variant: Variant, seed: int, target: live.ExecutorTarget, delay: float
) -> dict[str, live.LiveJobResult]:
    """Run the jobs under a policy's service, which starts after ``delay`` seconds."""
    time.sleep(delay)
    jobs = []
    for job in files.jobs:
        name = str(job["name"])
        work = job["epochs"] * job["chunks"] * job["minibatches"]
        pace = max(1, round(1000 * files.pace[name]))
        command = ["/bin/sh", "-c", SCRIPT, "paced", str(work), str(pace)]
        record = {key: value for key, value in job.items() if key != "arrival"}
        record["run"] = {"command": command, "grace": "10s", "retries": 3}
        jobs.append((files.seconds * files.arrival(name), record))
    choice, limit = variant.informed(files, seed), files.seconds * files.slots
    return live.run_live_in_temp_dir(files.cluster, jobs, choice, limit, target, ahead=AHEAD)


def _rows(
    files: InputFiles, variant: Variant, seed: int, live_results: Mapping[str, live.LiveJobResult]
) -> list[dict[str, Any]]:
    choice = variant.informed(files, seed)
    prediction = live.predict(files.cluster, files.jobs, live_results, choice, knows_jobs=False)
    columns = (
        "policy",
        "job",
        "completion",
        "predicted_completion",
        "utility",
        "predicted_utility",
        "start",
    )
    rows = []
    for job in files.jobs:
        result = live_results[str(job["name"])]
        speeds = files.speeds(job)
        row = live.compare_job(variant.label, job, result, prediction, speeds, files.slots)
        rows.append(
            {
                **{name: row[name] for name in columns},
                "moves": max(0, row["generations"] - 1),
                "late": result.delay_causes,
            }
        )
    return rows


def draw_paced(tables: Tables, figure: Figure) -> None:
    """Draw utility of every policy, simulated (pale) and in real time."""
    draw_predicted_and_real(
        figure.subplots(), tables["summary"],
        title="Fig. 7: simulated (pale) and in real time", ylabel="total utility of 12 jobs",
    )  # fmt: skip
