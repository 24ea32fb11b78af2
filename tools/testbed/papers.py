"""Experiments on nine real nodes: ``python -m tools.testbed.papers [NAME] [--quick]``.

The nodes of the testbed have the names of the experiment's servers, and pods use this machine's
interpreter and packages, read-only. The command is the same as anywhere else. In the end the
auditor checks the API server's log for duplicate pods and orphans.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from tools.testbed import BASE, Testbed, TestbedError, host_python
from tools.testbed.audit import Audit

from shadowprice.core.specs import ClusterSpec
from shadowprice.experiments.testbed.paced import NAMESPACE, POLICIES
from shadowprice.traces.generator import oasis_testbed_cluster

_RUN = "from shadowprice.cli.main import run; run()"


def nodes(copies: int) -> dict[str, dict[str, int]]:
    """Return each node's capacity besides cores and memory, by name, for copies of the cluster."""
    cluster = ClusterSpec.model_validate(oasis_testbed_cluster()).resolve("testbed")
    gpus = cluster.capacity[:, cluster.column["gpu"]]
    return {
        name: {"nvidia.com/gpu": copies * int(has) // 1000} if has else {}
        for name, has in zip(cluster.names, gpus, strict=True)
    }


def pod() -> dict[str, Any]:
    """Return the settings of all pods: the folders of this machine that they run from."""
    volumes, mounts = host_python()
    sources = {one["name"]: one["hostPath"]["path"] for one in volumes}
    found = [
        {"path": one["mountPath"], "host_path": sources[one["name"]], "read_only": True}
        for one in mounts
    ]
    return {"pull": "Never", "volumes": found}


def audited(log: Path) -> bool:
    """Print what the audit log has of pods; return whether it has no violations."""
    audit = Audit.read(log)
    faults = audit.faults()
    for fault in faults:
        print(f"testbed: {fault}", file=sys.stderr)
    found = f"{len(faults)} faults" if faults else "none doubled, made twice or left behind"
    print(f"The API server's log has {len(audit.pods)} pods: {found}.")
    return not faults


def main() -> int:
    """Run the experiment on a testbed; return 1 if its audit log has violations."""
    parser = argparse.ArgumentParser(prog="python -m tools.testbed.papers", description=__doc__)
    parser.add_argument("name", nargs="?", default="testbed", choices=["testbed", "testbed-paced"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    out = told.out or Path(f"experiments/{told.name}-kubernetes")
    paced = told.name == "testbed-paced"
    capacity = nodes(len(POLICIES) if paced else 1)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="papers-") as folder,
            Testbed({name: {} for name in capacity}, capacity=capacity) as bed,
        ):
            template = Path(folder, "pod.yaml")
            template.write_text(yaml.safe_dump(pod()))
            shared = Path(folder, "jobs")
            shared.mkdir()
            for policy in POLICIES if paced else ():
                name = {"metadata": {"name": NAMESPACE + policy}}
                bed.access.ask("POST", "/api/v1/namespaces", name)
            words = [sys.executable, "-c", _RUN, "experiment", told.name, "--out", str(out)]
            words += ["--seed", str(told.seed), *(["--quick"] if told.quick else [])]
            words += ["--executor", "kubernetes", "--address", str(bed.kubeconfig)]
            words += ["--listen", f"{bed.gateway}:0"]
            for one in (f"image={BASE}", f"pod={template}", f"shared={shared}"):
                words += ["--executor-set", one]
            ended = subprocess.run(words, check=False).returncode
            return max(ended, int(not audited(bed.audit)))
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
