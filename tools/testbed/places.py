"""Locations of the testbed's programs, and checks whether it can run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

VERSION = "1.20.2"
"""The version of Kubernetes that Debian's source package builds."""

BUILT = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
)
"""Programs built by the ``make`` of its source."""

OWN = ("hollow-nodes", "pause")
"""Further programs: many hollow nodes in one process, and a pod's pause process."""

INSTALLED = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
    "openssl": "openssl",
    "setpriv": "util-linux",
    "ip": "iproute2",
}
"""Programs with their Debian packages."""

PLUGINS = Path("/usr/lib/cni")
"""The folder of CNI plugins of ``containernetworking-plugins``."""

MANIFEST = "built.json"


class TestbedError(RuntimeError):
    """The testbed can't be built or run, for the reason in the message."""

    __test__ = False


def cache() -> Path:
    """Return the folder of the built programs, which may not exist.

    ``SHADOWPRICE_TESTBED`` names it; by default it is ``shadowprice/testbed/VERSION`` in the user's
    cache directory.
    """
    own = os.environ.get("SHADOWPRICE_TESTBED")
    if own:
        return Path(own).absolute()
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "shadowprice" / "testbed" / VERSION


def digest(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def manifest() -> dict[str, Any]:
    """Return the manifest of the build; empty if there is none."""
    try:
        content = json.loads((cache() / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def program(name: str) -> str:
    """Return the path of a program, built or installed.

    Raises
    ------
    TestbedError
        If it is missing.
    """
    if name in BUILT + OWN:
        path = cache() / name
        if not os.access(path, os.X_OK):
            raise TestbedError(f"{path}: {name} is not built; run make testbed")
        return str(path)
    # The system's programs first, whatever comes first in PATH.
    search_path = "/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ.get("PATH", "")
    installed = shutil.which(name, path=search_path)
    if installed is None:
        raise TestbedError(f"{name} is not installed; install Debian's package {INSTALLED[name]}")
    return installed


def missing(*, nodes: bool = True) -> str:
    """Return why no testbed can run here, or an empty string.

    ``nodes`` is whether it needs nodes that run pods, besides the control plane.
    """
    if not sys.platform.startswith("linux"):
        return "the testbed needs Linux"
    if not manifest():
        return f"no testbed is built at {cache()}; run make testbed (about ten minutes, once)"
    needed = [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "etcd",
        "openssl",
        "setpriv",
    ]
    if nodes:
        if os.geteuid() != 0:
            return "nodes of the testbed run containers, which needs root"
        needed += ["kubelet", "pause", "containerd", "ctr", "runc", "busybox", "ip"]
        if not (PLUGINS / "bridge").exists():
            package = "containernetworking-plugins"
            return f"{PLUGINS}/bridge is missing; install Debian's package {package}"
    try:
        for name in needed:
            program(name)
    except TestbedError as error:
        return str(error)
    return ""
