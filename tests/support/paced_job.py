"""A job of known speed: after warm-up a step takes ``serial + shared / workers`` seconds."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

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
luck = random.Random(job.workers)
due = time.monotonic()
for number in range(chosen.steps - step):
    seconds = takes * (3.0 if number < chosen.warm_up else 1.0)
    due += seconds * max(0.1, luck.gauss(1.0, chosen.noise))
    time.sleep(max(0.0, due - time.monotonic()))
    step += 1
    if chosen.way == "backwards" and number >= 20:
        jobs.report(step - 15)  # as a job that counts from its last checkpoint
    elif chosen.way != "silent":
        jobs.report(step, gradient_bytes=4_000_000, loss=1.0 / step, pid=os.getpid())
    if stop and chosen.way != "stubborn":
        jobs.save(step, b"")
        jobs.leave()
