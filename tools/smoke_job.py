"""Run a job in an environment with only shadowprice-training, under a service in another one.

``make test SUITE=smoke`` builds both wheels. It then calls this script with the command
``shadowprice`` of the service's environment and the interpreter of the job's environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

STEPS: Final = 20
LIMIT_SECONDS: Final = 900

SCRIPT: Final = f"""
import time
from importlib.util import find_spec

from shadowprice import jobs
from shadowprice.training import bag  # needs the standard library only

assert find_spec("shadowprice.core") is None and find_spec("numpy") is None
stop = jobs.StopSignal()
checkpoint = jobs.load()
step = checkpoint.step if checkpoint else 0
while step < {STEPS}:
    time.sleep(0.05)
    step += 1
    jobs.report(step, loss=1.0 / step)
    jobs.save(step, b"state")
    if stop and step < {STEPS}:
        jobs.leave()
print("trained", bag.current().task)
"""

CLUSTER: Final = {
    "slot": "1s",
    "horizon": 60,
    "servers": [{"name": "box", "capacity": {"cpu": 1, "memory": "1GiB"}}],
}


def job(python: str, script: Path) -> dict[str, object]:
    """Return the record of the job."""
    return {
        "name": "light",
        "chunks": 1,
        "minibatches": STEPS,
        "minibatch_time": "100ms",
        "worker": {"cpu": 1, "memory": "200MiB"},
        "utility": {"kind": "constant", "value": 1},
        "run": {"command": [python, str(script)], "grace": "5s"},
    }


def main(shadowprice: str, python: str) -> None:
    """Run the job under a service, and check that it finished and what it logged."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, data = folder / "job.py", folder / "data"
        script.write_text(SCRIPT)
        (folder / "cluster.json").write_text(json.dumps(CLUSTER))
        (folder / "jobs.json").write_text(json.dumps({"jobs": [job(python, script)]}))
        serve = [shadowprice, "serve", "--cluster", str(folder / "cluster.json"), "-o", "json"]
        serve += ["--data", str(data), "--listen", "127.0.0.1:0", "--policy", "fifo"]
        with subprocess.Popen(
            serve, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
        ) as service:
            try:
                assert service.stdout is not None
                address = json.loads(service.stdout.readline())["address"]
                environment["SHADOWPRICE_SERVER"] = address
                environment["SHADOWPRICE_TOKEN"] = (data / "operator.token").read_text().strip()
                run = [shadowprice, "submit", "--wait", str(folder / "jobs.json")]
                subprocess.run(run, env=environment, check=True, timeout=LIMIT_SECONDS)
                run = [shadowprice, "logs", "light"]
                logs = subprocess.run(
                    run, env=environment, check=True, capture_output=True, text=True
                ).stdout
            finally:
                service.send_signal(signal.SIGTERM)
                service.wait()
    if "trained -1" not in logs:
        raise SystemExit(f"the job's log lacks its last line:\n{logs}")


if __name__ == "__main__":
    start = time.monotonic()
    main(*sys.argv[1:])
    print(f"a job in its own environment finished in {time.monotonic() - start:.0f} s")
