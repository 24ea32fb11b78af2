"""Two replicas, one Lease, one PostgreSQL: frozen, killed, stopped; only the leader writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tools.testbed import Testbed

from tests.kubernetes.operators import (
    CLUSTER,
    DEPLOY,
    User,
    eventually,
    first_line,
    installed,
    killed,
    manifest,
)
from tests.support.postgres import binaries, postgres

pytestmark = pytest.mark.skipif(binaries() is None, reason="there is no PostgreSQL")


@pytest.fixture(scope="module")
def user(control_plane: Testbed) -> User:
    user = installed(control_plane)
    control_plane.kubectl("apply", "-f", str(DEPLOY / "shadowprice.yaml"))
    # The manifests' own replicas have no image here, and aren't tested.
    control_plane.kubectl("-n", "shadowprice", "scale", "deployment", "shadowprice", "--replicas=0")
    return user


MAIN = """
import datetime, time
skew, wall, wall_ns = {skew}, time.time, time.time_ns
time.time, time.time_ns = (lambda: wall() + skew), (lambda: wall_ns() + skew * 10**9)
from shadowprice.cli.main import run
from shadowprice.kubernetes import lease
class Skewed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=skew)
lease.datetime = Skewed
run()
"""


class Replica:
    """A process of the service with the account that the manifests create.

    Its clock is some seconds ahead of this machine's. Running jobs are recorded in the cluster, or
    in a
    folder with its name.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        bed: Testbed,
        database: str,
        skew: int = 0,
        *,
        here: bool = False,
    ) -> None:
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        cluster = self.folder / "cluster.yaml"
        cluster.write_text(yaml.safe_dump({**CLUSTER, "slot": "1h"}))  # nothing runs meanwhile
        token = folder / "operator.token"
        if not token.exists():
            token.touch(0o600)
            token.write_text("sp_" + "a" * 60)
        self.log = self.folder / "log"
        account = str(bed.account("shadowprice", "shadowprice"))
        runs = ["--executor", "local"]
        if not here:
            runs = ["--executor", "kubernetes", "--address", account]
            runs += ["--executor-set", "namespace=shadowprice"]
        words = [
            "serve", "-c", str(cluster), "--data", database, "--listen", "127.0.0.1:0",
            "-o", "json", "--policy", "fifo", "--token-file", str(token),
            "--lease", "shadowprice/shadowprice", "--trainingjobs", account, *runs,
        ]  # fmt: skip
        main = MAIN.format(skew=skew)
        log = self.log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", main, *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "POD_NAME": name},
        )
        log.close()
        line = first_line(self.process)
        assert line, self.log.read_text()
        headers = {"Authorization": f"Bearer {token.read_text()}"}
        self.client = httpx.Client(
            base_url=json.loads(line)["address"], headers=headers, timeout=20
        )

    def ready(self) -> bool:
        return self.client.get("/readyz").status_code == 200

    def end(self) -> None:
        killed(self.process)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.client.close()


@contextmanager
def replicas(bed: Testbed, folder: Path, database: str) -> Iterator[Any]:
    made: list[Replica] = []

    def another(name: str, skew: int = 0, *, here: bool = False) -> Replica:
        made.append(Replica(name, folder, bed, database, skew, here=here))
        return made[-1]

    try:
        yield another
    finally:
        for one in made:
            one.end()


def lease(user: User) -> dict[str, Any]:
    text = user.bed.kubectl("-n", "shadowprice", "get", "lease", "shadowprice", "-o", "json")
    return dict(json.loads(text)["spec"])


@pytest.mark.extended
def test_a_frozen_leader_is_replaced_and_writes_nothing_any_more(
    user: User, tmp_path: Path
) -> None:
    with postgres() as server, replicas(user.bed, tmp_path, server.url) as another:
        first = another("first")
        eventually(first.ready, "the first leader")
        user.apply(manifest("kept"), manifest("gone"))
        eventually(lambda: user.status("gone").get("state"), "a status")
        eventually(lambda: user.status("kept").get("state"), "a status")
        epoch = user.status("kept")["epoch"]
        assert epoch == lease(user)["leaseTransitions"]
        second = another("second")
        assert second.client.get("/readyz").status_code == 503
        assert second.client.get("/readyz?standby=ready").status_code == 200
        assert second.client.get("/v1/jobs").status_code == 503

        first.process.send_signal(signal.SIGSTOP)
        eventually(second.ready, "the second leader")
        later = lease(user)["leaseTransitions"]
        assert later > epoch
        eventually(lambda: user.status("kept").get("epoch") == later, "the mark of the new leader")
        user.apply(manifest("kept", utility={"kind": "constant", "value": 7}))
        user.delete("gone")
        user.gone("gone")
        user.apply(manifest("gone"))  # another job of that name
        user.waits_for("kept", "Edited")

        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(60) == 1
        assert "lost leadership" in first.log.read_text()
        assert second.ready()
        eventually(lambda: user.status("gone").get("epoch") == later, "the new job")
        jobs = second.client.get("/v1/jobs").json()["jobs"]
        states = {job["name"]: job["state"] for job in jobs}
        assert len(states) == 3, states
        assert sorted(states.values()).count("cancelled") == 1
        kept = user.status("kept")
        assert kept["epoch"] == later
        body = second.client.get(f"/v1/jobs/{kept['job']}").json()
        assert body["spec"]["utility"]["value"] == 7

        # A leader that stops in order releases the lease; the next one needn't wait until it
        # expires.
        third = another("third")
        second.process.terminate()
        assert second.process.wait(60) in {0, 143}
        eventually(third.ready, "the third leader")
        assert lease(user)["leaseTransitions"] > later
        user.delete("kept", "gone")
        user.gone("kept")
        user.gone("gone")


@pytest.mark.extended
def test_clocks_minutes_apart_change_neither_leader_nor_state(user: User, tmp_path: Path) -> None:
    with postgres() as server, replicas(user.bed, tmp_path, server.url) as another:
        ahead = another("ahead", 600)
        eventually(ahead.ready, "the leader")
        user.apply(manifest("skewed"))
        eventually(lambda: user.status("skewed").get("state"), "a status")
        before = lease(user)["leaseTransitions"]
        behind = another("behind", -600)
        # longer than a lease: by its own clock it isn't over, by the other's it is
        time.sleep(25.0)
        assert lease(user)["leaseTransitions"] == before
        assert ahead.ready()
        assert not behind.ready()
        ahead.process.kill()
        eventually(behind.ready, "the other leader")
        later = lease(user)["leaseTransitions"]
        assert later > before
        eventually(lambda: user.status("skewed").get("epoch") == later, "its mark")
        user.apply(manifest("skewed-later"))
        eventually(lambda: user.status("skewed-later").get("state"), "a status")
        jobs = behind.client.get("/v1/jobs").json()["jobs"]
        assert len(jobs) == 2
        user.delete("skewed", "skewed-later")
        user.gone("skewed")
        user.gone("skewed-later")


def test_a_killed_leader_loses_and_doubles_nothing(user: User, tmp_path: Path) -> None:
    with postgres() as server, replicas(user.bed, tmp_path, server.url) as another:
        first, second = another("first"), another("second")
        eventually(lambda: first.ready() or second.ready(), "a leader")
        leader, standby = (first, second) if first.ready() else (second, first)
        names = [f"many-{number}" for number in range(20)]
        user.apply(*(manifest(name) for name in names))
        leader.process.kill()  # in the middle of them
        eventually(standby.ready, "the other leader")
        later = lease(user)["leaseTransitions"]

        def followed() -> bool:
            text = user.bed.kubectl("get", "tj", "-o", "json")
            items = json.loads(text)["items"]
            return len(items) == 20 and all(
                item.get("status", {}).get("epoch") == later for item in items
            )

        eventually(followed, "all of them")
        jobs = standby.client.get("/v1/jobs?limit=100").json()["jobs"]
        assert len(jobs) == 20
        user.delete(*names)
        for name in names:
            user.gone(name)
        states = {job["state"] for job in standby.client.get("/v1/jobs").json()["jobs"]}
        assert states == {"cancelled"}


def test_one_that_may_not_write_lets_another_be_elected(user: User, tmp_path: Path) -> None:
    """The first records running jobs; the other one would run them twice, and is refused."""
    with postgres() as server, replicas(user.bed, tmp_path, server.url) as another:
        first = another("first", here=True)
        eventually(first.ready, "the first leader")
        other = another("other", here=True)
        first.process.terminate()
        assert first.process.wait(60) in {0, 143}
        eventually(lambda: "don't belong to these data" in other.log.read_text(), "its refusal")
        again = another("first", here=True)
        eventually(again.ready, "the first leader again")
        assert not other.ready()
        assert other.process.poll() is None
