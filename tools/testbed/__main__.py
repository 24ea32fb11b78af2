"""Run a testbed interactively: ``python -m tools.testbed --nodes one,two``.

The command prints how to connect, and runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time

from tools.testbed import Testbed, TestbedError


def main() -> int:
    """Start a testbed, wait, and stop it."""
    parser = argparse.ArgumentParser(prog="python -m tools.testbed", description=__doc__)
    parser.add_argument(
        "--nodes", default="one,two", help="names of the nodes that run pods; empty: none"
    )
    parser.add_argument("--gpus", type=int, default=0, help="number of nvidia.com/gpu per node")
    parser.add_argument(
        "--hollow",
        type=int,
        default=0,
        help="number of hollow nodes, which only pretend to run pods",
    )
    options = parser.parse_args()
    names = [name for name in options.nodes.split(",") if name]
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    began = time.monotonic()
    bed = Testbed(
        {name: {} for name in names},
        capacity={name: {"nvidia.com/gpu": options.gpus} for name in names if options.gpus},
        hollow=options.hollow,
    )
    try:
        with bed:
            ready = {"seconds": round(time.monotonic() - began, 1), "folder": str(bed.folder)}
            print(json.dumps(ready), flush=True)
            print(f"export KUBECONFIG={bed.kubeconfig}", flush=True)
            stopped.wait()
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
