"""Two replicas of the service with a database of their own, one of which leads.

A killed leader is restarted as the standby. A frozen leader continues once the other one leads, in
the middle of that one's work, and has to find out by itself that it no longer leads.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
from tools.testbed import Testbed
from tools.testbed.audit import entries

from tests.kubernetes.changing import begun
from tests.kubernetes.operators import (
    User,
    create,
    eventually,
    first_line,
    installed,
    killed,
    service_account,
)
from tests.support.postgres import postgres

NAMESPACE = "replicas"
NAMES = ("left", "right")

QUICK = (5, 1.0, 2.0)
"""Duration of a lease, its renewal interval, and the time before its end when it is released, in
seconds.
"""

AFTER = 2.0
"""Seconds that a new leader leads before the frozen one continues."""

_WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def accounts(bed: Testbed) -> User:
    """Install the definition, and an account for each replica, by which the audit log tells them
    apart.
    """
    user = installed(bed)
    create(bed, "namespace", NAMESPACE)
    for name in NAMES:
        create(bed, "serviceaccount", name, into=NAMESPACE)
    words = [f"--serviceaccount={NAMESPACE}:{name}" for name in NAMES]
    service_account(bed)  # with the manifests' roles
    create(bed, "clusterrolebinding", "r", "--clusterrole=shadowprice", *words)
    role = json.loads(bed.kubectl("-n", "shadowprice", "get", "role", "shadowprice", "-o", "json"))
    for namespace in (NAMESPACE, "default"):
        role["metadata"] = {"name": "shadowprice", "namespace": namespace}
        bed.kubectl("apply", "-f", "-", given=json.dumps(role))
        create(bed, "rolebinding", "own", "--role=shadowprice", *words, into=namespace)
        jobs = ("rolebinding", "jobs", "--clusterrole=shadowprice-jobs")
        create(bed, *jobs, *words, into=namespace)
    return user


def account(name: str) -> str:
    """Return a replica's name in the audit log."""
    return f"system:serviceaccount:{NAMESPACE}:{name}"


@dataclass
class Window:
    """The time from a replica's thawing to its end, in seconds since 1970.

    Parameters
    ----------
    name : str
        The replica.
    thawed, ended : float
        The times.
    """

    name: str
    thawed: float
    ended: float

    def written(self, bed: Testbed) -> list[str]:
        """Return its write requests in that time, except for its lease, by the API server's log."""
        results = []
        for line in entries(bed.audit):
            if line["user"].get("username") != account(self.name) or line["verb"] not in _WRITES:
                continue
            came = line["requestReceivedTimestamp"].replace("Z", "+00:00")
            within = self.thawed <= datetime.fromisoformat(came).timestamp() <= self.ended
            if within and (line.get("objectRef") or {}).get("resource") != "leases":
                code = (line.get("responseStatus") or {}).get("code")
                results.append(f"{line['verb']} {line['requestURI']}: {code}")
        return results


class Replica:
    """A process of the service.

    Parameters
    ----------
    pair : Pair
        The pair that it belongs to.
    name : str
        Name of the replica and of its account.
    """

    def __init__(self, pair: Pair, name: str) -> None:
        self.name = name
        self.folder = pair.folder / name
        self.folder.mkdir()
        self._pair = pair
        self.start()

    def start(self) -> None:
        """Start it; it stands by while the other one leads."""
        pair = self._pair
        bed = pair.user.bed
        variables = {"POD_NAME": self.name}
        if pair.quick:
            variables["LEASE"] = json.dumps(QUICK)
        self.frozen: float | None = None
        self.process = begun(
            bed,
            self.folder,
            pair.database,
            bed.account(NAMESPACE, self.name),
            pair.happens,
            pair.armed,
            *("--token-file", str(pair.token), "--lease", f"{NAMESPACE}/shadowprice"),
            **variables,
        )
        line = first_line(self.process)
        assert line, self.said()
        headers = {"Authorization": f"Bearer {pair.token.read_text()}"}
        address = json.loads(line)["address"]
        self.client = httpx.Client(base_url=address, headers=headers, timeout=5)

    def leads(self) -> bool:
        """Whether it leads and responds."""
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def deposed(self) -> bool:
        """Whether it reports that it ended because another replica leads, by its lease or by the
        store.
        """
        said = self.said()
        return "lost leadership" in said or "can't continue" in said

    def stopped(self) -> bool:
        """Whether a signal has stopped it."""
        # it exists until it is waited for
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "T"

    def said(self) -> str:
        """Return its last output."""
        return f"{self.name}: " + (self.folder / "log").read_text()[-3000:]

    def end(self) -> None:
        """Stop it for good."""
        killed(self.process)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.client.close()


class Pair:
    """Two replicas; see `changing.InterruptedService`.

    Parameters
    ----------
    user : User
        An administrator of the cluster.
    folder : Path
        Folder of all files outside the database.
    database : str
        URL of the database.
    happens : str
        The signals that a leader sends itself before steps, in turns.
    quick : bool
        Whether leases are shorter than by default.

    Attributes
    ----------
    interruptions : int
        How often a leader was killed or frozen.
    windows : list of Window
        The times in which frozen replicas found out that they no longer lead.
    """

    def __init__(
        self, user: User, folder: Path, database: str, happens: str, *, quick: bool
    ) -> None:
        self.user, self.folder, self.database = user, folder, database
        self.happens, self.quick = happens, quick
        self.armed, self.steps = folder / "armed", folder / "steps"
        self.token = folder / "token"
        self.token.touch(0o600)
        self.token.write_text("sp_" + "a" * 60)
        self.interruptions = 0
        self.windows: list[Window] = []
        self._led: float | None = None
        self.replicas: list[Replica] = []

    def start(self) -> None:
        """Start both, and wait until one leads."""
        for name in NAMES:
            self.replicas.append(Replica(self, name))
        eventually(self.quiet, "a leader")

    def goes_on(self) -> bool:
        """Restart a killed replica, thaw a frozen one; return whether anything was done."""
        left, right = self.replicas
        return self._mended(left, right) or self._mended(right, left)

    def _mended(self, one: Replica, other: Replica) -> bool:
        code = one.process.poll()
        if code is not None:
            if code == -signal.SIGKILL:
                self.interruptions += 1
            else:  # the machine was busy for longer than its lease lasts
                assert code == 1, (code, self.said())
                assert one.deposed(), self.said()
            one.end()
            one.start()
            return True
        if not one.stopped():
            return False
        if one.frozen is None:
            one.frozen, self._led = time.monotonic(), None
            self.interruptions += 1
            return True
        if other.frozen is None:
            if not other.leads():
                return False
            self._led = self._led or time.monotonic()
            if time.monotonic() - self._led < AFTER:
                return False
        elif other.frozen < one.frozen:
            return False  # it was frozen as the successor of the other one, which continues first
        self._thaw(one)
        return True

    def _thaw(self, one: Replica) -> None:
        thawed = time.time()
        one.process.send_signal(signal.SIGCONT)
        assert one.process.wait(60) == 1, self.said()
        self.windows.append(Window(one.name, thawed, time.time()))
        assert one.deposed(), self.said()
        one.end()
        one.start()

    def settle(self) -> None:
        """Wait until no replica is interrupted and one leads."""
        eventually(lambda: not self.goes_on() and self.quiet(), "two replicas")

    def quiet(self) -> bool:
        """Whether one leads and the other one could."""
        alive = not any(replica.stopped() for replica in self.replicas)
        return alive and sum(replica.leads() for replica in self.replicas) == 1

    def said(self) -> str:
        """Return the last output of both."""
        return "\n".join(replica.said() for replica in self.replicas)

    def end(self) -> None:
        """Stop both for good."""
        for replica in self.replicas:
            replica.end()


@contextmanager
def paired(user: User, folder: Path, happens: str = "", *, quick: bool = True) -> Iterator[Pair]:
    """Run two replicas during the block."""
    with postgres() as server:
        made = Pair(user, folder, server.url, happens, quick=quick)
        try:
            made.start()
            yield made
        finally:
            made.end()
