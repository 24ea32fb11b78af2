"""Services that run jobs on Ray."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.ray_cluster import RayCluster

START = "from shadowprice.cli.main import run; run()"
TRAIN = Path(__file__).parents[2] / "examples" / "live" / "train.py"
PATIENCE = 180.0
CLUSTER = {
    "slot": "3s",
    "horizon": 200,
    # "two" isn't in the file: it joins because Ray has it. "gone" is in the file, and Ray doesn't
    # have it.
    "servers": [
        {"name": "one", "capacity": {"cpu": 2, "memory": "1GiB"}},
        {"name": "gone", "capacity": {"cpu": 64, "memory": "64GiB"}},
    ],
}


@contextmanager
def serving(folder: Path, cluster: RayCluster) -> Iterator[tuple[httpx.Client, int]]:
    """Run the command; yield a client and the service's number."""
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(CLUSTER))
    words = ["serve", "-c", str(file), "--data", str(folder / "data"), "--listen", "127.0.0.1:0"]
    words += ["-p", "fifo", "-o", "json", "--executor", "ray", "--address", cluster.address]
    words += ["--executor-set", f"node_dir={folder / 'nodes'}", "--executor-set", "lost_after=2"]
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(
            [sys.executable, "-c", START, *words], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            token = (folder / "data" / "operator.token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=address, headers=headers, timeout=20) as client:
                yield client, process.pid
        finally:
            process.terminate()
            process.wait(60)


def until(said: Callable[[], Any], shown: Callable[[], Any] = lambda: "") -> Any:
    """Wait until a function returns a value, and return it."""
    end = time.monotonic() + PATIENCE
    while True:
        result = said()
        if result:
            return result
        assert time.monotonic() < end, shown()
        time.sleep(0.3)


def job(name: str, cores: int, seed: int) -> dict[str, Any]:
    words = [sys.executable, str(TRAIN), "--task", "spirals", "--steps", "160", "--pace", "0.1"]
    return {
        "name": name,
        "chunks": 1,  # one worker
        "minibatches": 160,
        "minibatch_time": "150ms",
        "worker": {"cpu": cores, "memory": "300MiB"},
        "utility": {"kind": "sigmoid", "value": 10, "decay": 0.1, "target": "200s"},
        "run": {
            "command": [*words, "--seed", str(seed)],
            "env": {"PYTHONPATH": str(TRAIN.parents[2] / "src"), "OMP_NUM_THREADS": 1},
            "grace": "15s",
            "retries": 2,
        },
    }


def jobs(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in client.get("/v1/jobs").json()["jobs"]}
