"""A whole Kubernetes cluster on this machine."""

from __future__ import annotations

import base64
import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tools.testbed import images, logs
from tools.testbed.access import ApiError
from tools.testbed.hollow import LEASE, Hollow
from tools.testbed.names import Names
from tools.testbed.network import Forward, Network
from tools.testbed.nodes import Groups, Node, unmount
from tools.testbed.places import TestbedError, missing, program
from tools.testbed.plane import NODE_GRACE, SERVICES, ControlPlane
from tools.testbed.process import PATIENCE, Component, Ports, eventually

_PREFIX = "testbed-"
_KERNEL = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""Kernel parameters that a kubelet changes."""


class Testbed:
    """A cluster on loopback and a bridge, with all files in one temporary folder.

    Several may run at once. A testbed starts with ``start`` or a ``with`` block, and ``stop``
    removes all its files and processes. If its process was killed, the next testbed removes them.

    Parameters
    ----------
    nodes : mapping of str to mapping of str to str
        Labels of each node that runs pods. Without nodes, the control plane needs no root.
    capacity : mapping of str to mapping of str to int
        Further resources of a node, such as ``nvidia.com/gpu``. ``cpu`` (cores) and ``memory``
        (bytes) limit the node to a part of this machine; without them, a node has all of it.
    hollow : int
        Number of further nodes that only pretend to run pods: ``hollow-0``, ...
    users : mapping of str to sequence of str
        Users by token beside ``admin``, with their groups.
    node_grace : float
        Seconds without a heartbeat after which a node counts as not ready. The default depends on
        whether there are hollow nodes.
    apiserver : sequence of str
        Further arguments of the API server.
    policies : bool
        Whether network policies are enforced for pods that start; see `policies`.
    """

    __test__ = False

    def __init__(
        self,
        nodes: Mapping[str, Mapping[str, str]] | None = None,
        *,
        capacity: Mapping[str, Mapping[str, int]] | None = None,
        hollow: int = 0,
        users: Mapping[str, Sequence[str]] | None = None,
        node_grace: float | None = None,
        apiserver: Sequence[str] = (),
        policies: bool = False,
    ) -> None:
        self._wanted = dict(nodes or {})
        self._capacity = dict(capacity or {})
        self._hollow = hollow
        self._users = {name: tuple(groups) for name, groups in (users or {}).items()}
        # Hollow nodes send few heartbeats, because hundreds of nodes share one process.
        default_grace = NODE_GRACE if not hollow else 2 * LEASE
        self._grace = default_grace if node_grace is None else node_grace
        self._apiserver = tuple(apiserver)
        self._policies = policies
        self._stack = ExitStack()
        self.nodes: dict[str, Node] = {}

    # -------------------------------------------------------------- start and stop

    def __enter__(self) -> Testbed:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all programs and wait until they are ready.

        Raises
        ------
        TestbedError
            If a program is missing, or doesn't become ready; with the end of its log.
        """
        reason = missing(nodes=bool(self._wanted))
        if reason:
            raise TestbedError(reason)
        sweep()
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()

    def _start(self, stack: ExitStack) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        stack.enter_context(_locked(self.folder))
        ports = Ports()
        stack.callback(ports.release)
        # The network of services, and its first address, that of the API server.
        services, apiserver = SERVICES, "10.96.0.1"
        network = Network(_bridge(self.folder), tuple(self._wanted))
        if self._wanted:
            stack.enter_context(_kernel_parameters())
            stack.enter_context(logs.apart())
            stack.callback(network.stop)
            network.start()
            services, apiserver = network.services, network.apiserver
        users = dict(self._users)
        for name in [*self._wanted, *(f"hollow-{number}" for number in range(self._hollow))]:
            users[f"system:node:{name}"] = ("system:nodes",)
        self.plane = ControlPlane(
            self.folder, ports, users, self._grace, self._apiserver, services, apiserver
        )
        self.access = self.plane.access
        self.gateway = network.gateway if self._wanted else "127.0.0.1"
        """Address of this machine for pods."""
        stack.callback(self.plane.stop)
        self.plane.start()
        if self._wanted:
            if self._policies:
                network.enforce(self.folder / "cni", Path(program("kubectl")), self.kubeconfig)
            forward = Forward(network.apiserver, self.plane.port)
            stack.callback(forward.close)
            names = Names(network.gateway, self.access)
            stack.callback(names.close)
            self._start_nodes(stack, network, ports)
        self.hollow = Hollow(self.folder, self.access, self._hollow)
        stack.callback(self.hollow.stop)
        self.hollow.start()

    def _start_nodes(self, stack: ExitStack, network: Network, ports: Ports) -> None:
        archives = images.write(self.folder)
        group = Groups(f"/{self.folder.name}")
        stack.callback(group.remove)
        group.make()
        group.weigh(len(self._wanted))
        for name, labels in self._wanted.items():
            node = Node(
                name,
                self.folder / f"n{len(self.nodes)}",
                self.access,
                network,
                ports.free(),
                f"{group.name}/{name}",
                archives,
                labels,
                self._capacity.get(name, {}),
            )
            self.nodes[name] = node
            stack.callback(node.end)
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.wait()

    def stop(self) -> None:
        """Stop all programs and remove all files."""
        self._stack.close()
        self.nodes.clear()

    # -------------------------------------------------------------- access

    @property
    def url(self) -> str:
        """The API server's address."""
        return self.plane.url

    @property
    def certificate(self) -> Path:
        """The certificate authority."""
        return self.access.certificate

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.access.kubeconfig("admin")

    @property
    def audit(self) -> Path:
        """The API server's audit log, lines of JSON."""
        return self.plane.audit

    def kubeconfig_of(self, user: str) -> Path:
        """Return the kubeconfig of one of ``users``."""
        return self.access.kubeconfig(user)

    def account(self, namespace: str, name: str) -> Path:
        """Return the kubeconfig of an existing service account.

        Raises
        ------
        TestbedError
            If the account doesn't exist, or gets no token in time.
        """
        prefix = f"/api/v1/namespaces/{namespace}"
        secrets: list[str] = []

        def has_token() -> bool:
            with suppress(ApiError):
                account = self.access.ask("GET", f"{prefix}/serviceaccounts/{name}")
                secrets.extend(secret["name"] for secret in account.get("secrets") or ())
            return bool(secrets)

        eventually(has_token, f"a token of the account {namespace}/{name}", 60.0)
        secret = self.access.ask("GET", f"{prefix}/secrets/{secrets[0]}")
        token = base64.b64decode(secret["data"]["token"]).decode()
        path = self.folder / f"account-{namespace}-{name}.kubeconfig"
        return self.access.write(path, f"{namespace}-{name}", token)

    def ask(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """Send a request to the API server; see `access.Access.ask`."""
        return self.access.ask(method, path, body, **more)

    def kubectl(self, *words: str, given: str | None = None, user: str = "admin") -> str:
        """Run kubectl; return its output.

        Raises
        ------
        TestbedError
            If it fails; with its error output.
        """
        kubeconfig = str(self.access.kubeconfig(user))
        done = subprocess.run(
            [program("kubectl"), "--kubeconfig", kubeconfig, *words],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin"},
        )
        if done.returncode:
            raise TestbedError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    # -------------------------------------------------------------- faults

    def component(self, name: str) -> Component:
        """Return a program of the control plane."""
        return self.plane.components[name]

    def kill(self, name: str) -> None:
        """Kill a program of the control plane with SIGKILL."""
        self.component(name).kill()

    def restart(self, name: str) -> None:
        """Restart a program of the control plane and wait until it is ready."""
        self.component(name).kill()
        self.component(name).start()
        self.component(name).wait()

    def expire_watches(self) -> None:
        """Compact etcd, so that watches from older revisions get 410 Gone.

        The API server is killed and restarted, which ends all watches, and etcd drops older
        revisions.
        """
        self.kill("kube-apiserver")
        self.plane.compact()
        self.restart("kube-apiserver")

    def lose(self, name: str) -> None:
        """Power off a node: all its processes end at once."""
        self.nodes[name].lose()

    def restore(self, name: str, *, wiped: bool = False) -> None:
        """Power on a node; if ``wiped``, with an empty disk, so that it doesn't know its pods."""
        if wiped:
            self.nodes[name].wipe()
        self.nodes[name].start()
        self.nodes[name].wait()

    def cut(self, name: str) -> None:
        """Partition a node from the API server; its pods continue."""
        self.nodes[name].freeze()

    def join(self, name: str) -> None:
        """End the partition of a node."""
        self.nodes[name].thaw()
        eventually(self.nodes[name].is_ready, f"node {name} is ready again")


def _bridge(folder: Path) -> str:
    return f"tb-{folder.name.removeprefix(_PREFIX)}"[:15]


class _locked:  # noqa: N801  # used like a function
    """Holds the lock of a folder, which shows that its testbed is alive."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


class _kernel_parameters:  # noqa: N801  # used like a function
    """Restores the kernel parameters that kubelets change."""

    def __enter__(self) -> None:
        self._before = {
            name: value
            for name in _KERNEL
            if (value := _read(Path("/proc/sys") / name)) is not None
        }

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            with suppress(OSError):
                (Path("/proc/sys") / name).write_text(value)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def sweep() -> None:
    """Remove the files and groups of testbeds whose process was killed."""
    for folder in Path("/tmp").glob(f"{_PREFIX}*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
        except OSError:  # it belongs to another user, is alive, or is being created
            continue


def _remove(folder: Path) -> None:
    Groups(f"/{folder.name}").remove()
    unmount(folder)
    Network(_bridge(folder), ()).stop()
    shutil.rmtree(folder, ignore_errors=True)
