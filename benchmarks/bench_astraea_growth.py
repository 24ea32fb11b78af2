"""Growth of Astraea's run time: workloads of 14 users, 100 to 1,000 servers, 300 to 10,000 jobs.

Arrivals are Philly's if the trace is available, else generated. Jobs are drawn from the paper's
ranges with a sixteenth of the work (a job fills a server for half a day), so that rounds are at
most 512 slots long. FIFO runs the same jobs on the same cluster, to show the cost of the engine
alone. The paper reports 1.56 s per job.

Run: ``python -m benchmarks.bench_astraea_growth [MAX_JOBS]``
"""

from __future__ import annotations

import resource
import sys
import time

from shadowprice.experiments.astraea.setting import SHORT, Preset, draw_jobs, shared_cluster

ROWS = (
    (100, 300),
    (100, 1000),
    (100, 3000),
    (300, 3000),
    (1000, 300),
    (1000, 3000),
    (1000, 10000),
)
PRESET = Preset("", "", settings={"fifo": {"workers": "min"}})


def main() -> None:
    max_jobs = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS[-1][1]
    warm = shared_cluster(14, 20, 64)
    for policy in ("astraea", "fifo"):  # compiles the kernels
        PRESET.run(policy, warm, draw_jobs(warm, 20, 0, ranges=SHORT)[0])
    print("servers   jobs  done  loans  total s  deciding s  ms/job  fifo total s  peak MiB")
    for servers, count in ROWS:
        if count > max_jobs:
            continue
        cluster = shared_cluster(14, servers, 512)
        jobs, _ = draw_jobs(cluster, count, 1, ranges=SHORT)
        outcome = PRESET.run("astraea", cluster, jobs)
        began = time.perf_counter()
        PRESET.run("fifo", cluster, jobs)
        fifo = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{servers:>7} {count:>6} {len(outcome.earned):>5} {len(outcome.borrowers):>6} "
            f"{outcome.seconds:8.2f} {outcome.deciding:11.2f} "
            f"{1000 * outcome.deciding / count:7.2f} {fifo:13.2f} {peak:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
