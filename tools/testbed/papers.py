"""Experiments on nine real nodes: ``python -m tools.testbed.papers [NAME] [--quick]``.

The nodes of the testbed have the names of the experiment's servers, and pods use this machine's
interpreter and packages, read-only. The command ``shadowprice experiment`` then runs as on any
other cluster. At the end, `audit` checks the API server's log for duplicate and orphaned pods.
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
    """Return each node's GPUs, by name, for a number of copies of the experiment's cluster."""
    cluster = ClusterSpec.model_validate(oasis_testbed_cluster()).resolve("testbed")
    gpus = cluster.capacity[:, cluster.column["gpu"]]
    return {
        name: {"nvidia.com/gpu": copies * int(has) // 1000} if has else {}
        for name, has in zip(cluster.names, gpus, strict=True)
    }


def pod() -> dict[str, Any]:
    """Return the pod settings of the executor: folders of this machine, mounted read-only."""
    volumes, mounts = host_python()
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in volumes}
    settings = [
        {"path": mount["mountPath"], "host_path": sources[mount["name"]], "read_only": True}
        for mount in mounts
    ]
    return {"pull": "Never", "volumes": settings}


def audited(log: Path) -> bool:
    """Print the violations in the audit log; return whether it has none."""
    audit = Audit.read(log)
    violations = audit.faults()
    for violation in violations:
        print(f"testbed: {violation}", file=sys.stderr)
    result = f"{len(violations)} violations" if violations else "no duplicates, no orphans"
    print(f"The API server's log has {len(audit.pods)} pods: {result}.")
    return not violations


def main() -> int:
    """Run the experiment on a testbed; return 1 if its audit log has violations."""
    parser = argparse.ArgumentParser(prog="python -m tools.testbed.papers", description=__doc__)
    parser.add_argument("name", nargs="?", default="testbed", choices=["testbed", "testbed-paced"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or Path(f"experiments/{options.name}-kubernetes")
    paced = options.name == "testbed-paced"
    # All policies of the paced experiment run at the same time.
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
            argv = [sys.executable, "-c", _RUN, "experiment", options.name, "--out", str(out)]
            argv += ["--seed", str(options.seed), *(["--quick"] if options.quick else [])]
            argv += ["--executor", "kubernetes", "--address", str(bed.kubeconfig)]
            argv += ["--listen", f"{bed.gateway}:0"]
            for setting in (f"image={BASE}", f"pod={template}", f"shared={shared}"):
                argv += ["--executor-set", setting]
            status = subprocess.run(argv, check=False).returncode
            return max(status, int(not audited(bed.audit)))
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
