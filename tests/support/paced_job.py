"""A job of known speed: after warm-up a step takes ``serial + shared / workers`` seconds.

Its clock is simulated: a report has the time at which its step was due, so that a busy machine
changes no measured speed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

from shadowprice import jobs

parser = argparse.ArgumentParser()
parser.add_argument("--serial", type=float, default=0.01)
parser.add_argument("--shared", type=float, default=0.04)
parser.add_argument(
    "--linear",
    type=float,
    default=0.0,
    help="seconds of a mini-batch on one worker, divided by the workers",
)
parser.add_argument("--noise", type=float, default=0.0)
parser.add_argument(
    "--warm-up", type=int, default=10, help="first steps, which take three times as long"
)
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--way", default="")
chosen = parser.parse_args()

job = jobs.current()
stop = jobs.StopSignal()
found = jobs.load()
step = found.step if found and chosen.way != "forgetful" else 0
print(f"{job.role} {job.rank} of {job.workers}, step {step}", flush=True)
if chosen.way == "dies":
    sys.exit("no such data set")
if chosen.way == "dies-with-two" and job.workers == 2:
    sys.exit("two are too many")
if job.role == "ps" or job.rank:
    stop.wait(600.0)
    jobs.leave()
if chosen.linear:
    takes = chosen.linear / job.workers
else:
    takes = chosen.serial + chosen.shared / job.workers


def report(minibatches: int) -> None:
    """Write the progress file; its modification time, at which the report counts, is `due`."""
    metrics = {"gradient_bytes": 4_000_000, "loss": 1.0 / step}
    content = {"generation": job.generation, "minibatches": minibatches, "metrics": metrics}
    path = Path(os.environ["SHADOWPRICE_PROGRESS_FILE"])
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(content))
    os.utime(new, (due, due))
    new.replace(path)


luck = random.Random(job.workers)
due = time.time()
for number in range(chosen.steps - step):
    seconds = takes * (3.0 if number < chosen.warm_up else 1.0)
    due += seconds * max(0.1, luck.gauss(1.0, chosen.noise))
    time.sleep(max(0.0, due - time.time()))
    step += 1
    if chosen.way == "backwards" and number >= 20:
        report(step - 15)  # as a job that counts from its last checkpoint
    elif chosen.way != "silent":
        report(step)
    if stop and chosen.way != "stubborn":
        jobs.save(step, b"")
        jobs.leave()
