"""Nodes of a testbed: each has a kubelet and a containerd, and runs real pods.

Each kubelet needs its own containerd, because it ends every pod that it doesn't know. All nodes
share this machine's kernel; each has its own folder, ports, control groups and address.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tools.testbed.access import Access, ApiError
from tools.testbed.images import PAUSE
from tools.testbed.logs import OWN
from tools.testbed.names import DOMAIN
from tools.testbed.network import Network
from tools.testbed.places import TestbedError
from tools.testbed.process import Component, eventually, run

CGROUPS = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Return the mount points of control groups: one with version 2, several with version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    # Version 1 also has links to folders that contain several controllers.
    return [
        folder
        for folder in sorted(CGROUPS.iterdir())
        if folder.is_dir() and not folder.is_symlink()
    ]


class Groups:
    """The control groups with one name in all hierarchies, and their children.

    Parameters
    ----------
    name : str
        Path below the root of each hierarchy.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._roots = [hierarchy / name.strip("/") for hierarchy in hierarchies()]

    def make(self) -> None:
        """Create the groups."""
        for root in self._roots:
            root.mkdir(parents=True, exist_ok=True)
            if root.is_relative_to(CGROUPS / "cpuset"):
                self._inherit_cpuset(root)

    def weigh(self, machines: int) -> None:
        """Multiply the groups' share of the processors by a number of machines.

        By default, a group gets the same share as any other control group of this machine, even if
        several nodes run in it.
        """
        for root in self._roots:
            shares, weight = root / "cpu.shares", root / "cpu.weight"
            if shares.exists():
                shares.write_text(str(1024 * machines))
            elif weight.exists():
                weight.write_text(str(min(10_000, 100 * machines)))

    @staticmethod
    def _inherit_cpuset(root: Path) -> None:
        """Copy the parent's cores and memory nodes to a cpuset group, which starts with none."""
        for part in [*reversed(root.relative_to(CGROUPS / "cpuset").parents), Path()]:
            group = CGROUPS / "cpuset" / (part if part != Path() else root)
            if group == CGROUPS / "cpuset":
                continue
            for file in ("cpuset.cpus", "cpuset.mems"):
                target = group / file
                if target.exists() and not target.read_text().strip():
                    target.write_text((group.parent / file).read_text())

    def processes(self) -> set[int]:
        """Return the processes in the groups."""
        pids: set[int] = set()
        for root in self._roots:
            for file in root.rglob("cgroup.procs"):
                with suppress(OSError):
                    pids.update(int(line) for line in file.read_text().split())
        return pids

    def kill(self, patience: float = 60.0) -> None:
        """Kill all processes in the groups, for at most ``patience`` seconds."""

        def is_empty() -> bool:
            pids = self.processes()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        self._thaw()  # frozen processes don't end
        eventually(is_empty, f"no process in {self.name}", patience)

    def _thaw(self) -> None:
        for file in (CGROUPS / "freezer" / self.name.strip("/")).rglob("freezer.state"):
            with suppress(OSError):
                file.write_text("THAWED")

    def remove(self) -> None:
        """Kill all processes in the groups, and remove the groups."""
        self.kill()
        for root in self._roots:
            if not root.exists():
                continue
            # Children first.
            folders = [path for path in root.rglob("*") if path.is_dir()]
            for folder in sorted(folders, key=lambda path: -len(path.parts)):
                self._rmdir(folder)
            self._rmdir(root)

    @staticmethod
    def _rmdir(folder: Path) -> None:
        deadline = time.monotonic() + 20.0  # killed processes leave a group after a moment
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def unmount(folder: Path) -> None:
    """Unmount all mount points below a folder."""
    for _ in range(10):  # a mount point may have several mounts
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        below = [mount for mount in mounts if mount.startswith(f"{folder}/")]
        if not below:
            return
        for mount in sorted(below, key=len, reverse=True):
            with suppress(TestbedError):
                run("umount", "-l", mount)
    raise TestbedError(f"failed to unmount everything below {folder}")


class Node:
    """A node that runs pods.

    Parameters
    ----------
    name : str
        Its name.
    folder : Path
        Folder of all its files; the path is short, because paths of sockets have a small limit.
    access : Access
        Access of its kubelet to the API server, as ``system:node:NAME``.
    network : Network
        Network of its address and those of its pods.
    port : int
        Port of its kubelet.
    group : str
        Its control group.
    images : sequence of Path
        Archives of its images.
    labels : mapping of str to str
        Labels that it registers with.
    capacity : mapping of str to int or str
        Further resources in its status, such as ``nvidia.com/gpu``; limits of ``cpu`` (cores) and
        ``memory`` (bytes) for pods.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        access: Access,
        network: Network,
        port: int,
        group: str,
        images: Sequence[Path],
        labels: Mapping[str, str],
        capacity: Mapping[str, int],
    ) -> None:
        self.name, self.folder, self.access = name, folder, access
        self.labels, self.capacity = dict(labels), dict(capacity)
        self.groups = Groups(group)
        self._shims = Groups(f"{group}/shims")
        self._network, self._port, self._images = network, port, tuple(images)
        self._socket = folder / "c.sock"
        folder.mkdir()
        (folder / OWN).mkdir()
        self._configure_containerd()
        self._configure_kubelet()
        self.containerd = Component(
            "containerd",
            ["--config", str(folder / "containerd.toml")],
            folder,
            self._containerd_ready,
        )
        self.kubelet = Component("kubelet", self._kubelet_arguments(), folder, self.is_ready)

    # -------------------------------------------------------------- configuration

    def _configure_containerd(self) -> None:
        folder, cri = self.folder, "plugins.'io.containerd.grpc.v1.cri'"
        (folder / "cni").mkdir()
        (folder / "cni" / "10-testbed.conflist").write_text(
            json.dumps(self._network.plugins(self.name, folder / "ipam"))
        )
        (folder / "containerd.toml").write_text(
            f"""version = 2
root = '{folder}/root'
state = '{folder}/state'
disabled_plugins = ['io.containerd.snapshotter.v1.aufs', 'io.containerd.snapshotter.v1.btrfs',
  'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs',
  'io.containerd.tracing.processor.v1.otlp', 'io.containerd.internal.v1.tracing']
[grpc]
address = '{self._socket}'
[plugins.'io.containerd.internal.v1.opt']
path = '{folder}/opt'
[{cri}]
sandbox_image = '{PAUSE}'
restrict_oom_score_adj = true
stream_server_address = '127.0.0.1'
netns_mounts_under_state_dir = true
[{cri}.cni]
bin_dir = '{self._network.programs}'
conf_dir = '{folder}/cni'
[{cri}.containerd]
snapshotter = 'overlayfs'
default_runtime_name = 'runc'
[{cri}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[{cri}.containerd.runtimes.runc.options]
Root = '{folder}/runc'
ShimCgroup = '{self._shims.name}'
"""
        )

    def _configure_kubelet(self) -> None:
        resolve = self.folder / "resolv.conf"
        resolve.write_text(f"nameserver {self._network.gateway}\n")
        config: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._network.address(self.name),
            "port": self._port,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.groups.name,
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "systemReserved": self._reserved(),
            "clusterDNS": [self._network.gateway],
            "clusterDomain": DOMAIN,
            "resolvConf": str(resolve),
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "hairpinMode": "none",
            "serializeImagePulls": False,
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "30s",
            "nodeLeaseDurationSeconds": 4,
            "syncFrequency": "10s",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "volumeStatsAggPeriod": "0s",
            "maxPods": 100,
            "containerLogMaxSize": "200Mi",
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "eventRecordQPS": 50,
        }
        (self.folder / "kubelet.json").write_text(json.dumps(config, indent=1))

    def _reserved(self) -> dict[str, str]:
        """Return the reserved resources that leave the node its stated capacity."""
        reserved = {}
        if "cpu" in self.capacity:
            cores = (os.cpu_count() or 1) - float(self.capacity["cpu"])
            if cores < 0:
                raise TestbedError(f"node {self.name}: this machine has {os.cpu_count()} cores")
            reserved["cpu"] = f"{round(1000 * cores)}m"
        if "memory" in self.capacity:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            # The kubelet also subtracts the eviction threshold, 50 MiB.
            memory = total - int(self.capacity["memory"]) - (50 << 20)
            if memory < 0:
                raise TestbedError(f"node {self.name}: this machine has {total} bytes of memory")
            reserved["memory"] = str(memory)
        return reserved

    def _kubelet_arguments(self) -> list[str]:
        folder = self.folder
        arguments = [
            f"--config={folder}/kubelet.json",
            f"--kubeconfig={self.access.kubeconfig(f'system:node:{self.name}')}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._network.address(self.name)}",
            f"--root-dir={folder}/kubelet",
            f"--cert-dir={folder}/kubelet/pki",
            f"--volume-plugin-dir={folder}/plugins",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self._socket}",
            f"--log-dir={folder}",
        ]
        if self.labels:
            arguments.append(
                "--node-labels=" + ",".join(f"{key}={value}" for key, value in self.labels.items())
            )
        return arguments

    # -------------------------------------------------------------- start and stop

    def _ctr(self, *words: str) -> str:
        return run("ctr", "--address", str(self._socket), "--namespace", "k8s.io", *words)

    def load(self, archive: Path) -> None:
        """Import an image."""
        self._ctr("images", "import", str(archive))

    def kill_container(self, number: str) -> None:
        """Kill a container's first process; the kubelet restarts it."""
        self._ctr("tasks", "kill", "--signal", "SIGKILL", number)

    def _containerd_ready(self) -> bool:
        try:
            lines = self._ctr("plugins", "list").splitlines()
        except TestbedError:
            return False
        (runtime,) = (line.split() for line in lines if " cri " in line)
        if runtime[-1] != "ok":  # containerd continues without this plugin, and only logs an error
            raise TestbedError(f"containerd cannot run pods: {self.containerd.tail(20)}")
        return True

    def status(self) -> dict[str, Any]:
        """Return the node's API object; empty if it doesn't exist or the API server is away."""
        try:
            node = self.access.ask("GET", f"/api/v1/nodes/{self.name}")
        except (ApiError, OSError):
            return {}
        return dict(node)

    def is_ready(self) -> bool:
        """Whether the node is ready according to the API server."""
        conditions = self.status().get("status", {}).get("conditions", ())
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )

    def start(self) -> None:
        """Start the node without waiting for it."""
        self.groups.make()
        self._shims.make()  # containerd doesn't create the group of its shims
        self.containerd.start()
        self.containerd.wait()
        for image in self._images:
            self.load(image)
        self.kubelet.start()

    def wait(self) -> None:
        """Wait until the node is ready and reports its capacity."""
        self.kubelet.wait()
        extended = {
            name: str(amount)
            for name, amount in self.capacity.items()
            if name not in {"cpu", "memory"}
        }
        if extended:
            self.access.ask(
                "PATCH",
                f"/api/v1/nodes/{self.name}/status",
                {"status": {"capacity": extended, "allocatable": extended}},
                kind="application/strategic-merge-patch+json",
            )

    def lose(self) -> None:
        """Power off: all processes end at once; the disk is kept."""
        self.kubelet.kill()
        self.containerd.kill()
        self.groups.kill()
        unmount(self.folder)
        for volatile in ("state", "runc", "ipam"):
            shutil.rmtree(self.folder / volatile, ignore_errors=True)

    def freeze(self) -> None:
        """Suspend the kubelet; pods continue."""
        self.kubelet.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the kubelet."""
        self.kubelet.signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete pods and containers from the disk, as a new installation does."""
        for folder in ("root", "kubelet"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)

    def end(self) -> None:
        """Stop the node and remove its control groups; its files stay, for their logs."""
        self.thaw()
        self.lose()
        self.groups.remove()
