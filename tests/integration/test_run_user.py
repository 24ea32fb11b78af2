"""Jobs as users that an operator allows: their identity, their access, and their ends."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.executors.contract import Executor, ExecutorOptions
from shadowprice.executors.registry import create_executor
from shadowprice.service.settings import parse_users
from tests.support.archives import DIR, END, member
from tests.support.recording_executor import RecordingExecutor
from tests.support.services import RunningService, run_service
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as others"),
]

USER = "nobody"
CLUSTER = {
    "slot": "1s",
    "horizon": 100,
    "tenants": [{"name": "red"}, {"name": "blue"}],
    "servers": [{"name": "g", "capacity": {"cpu": 4}}],
}

LOOK = """
id -un; id -u; id -G; echo home=$HOME user=$USER; pwd
umask 077; echo checkpoint > $SHADOWPRICE_CHECKPOINT_DIR/step
echo '{"generation": 1, "minibatches": 1}' > $SHADOWPRICE_PROGRESS_FILE.new
mv $SHADOWPRICE_PROGRESS_FILE.new $SHADOWPRICE_PROGRESS_FILE
cat {data}/operator.token {data}/shadowprice.db 2>&1 >/dev/null | grep -c denied
touch {users}/mine {job}/mine 2>&1 | grep -c denied
grep -E 'NoNewPrivs|CapEff' /proc/self/status
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can traverse, unlike those of pytest."""
    directory = Path(tempfile.mkdtemp(prefix="shadowprice-users-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


def executor_in(folder: Path) -> Executor:
    settings = {"users": str(folder / "users"), "cgroup": "off"}
    return create_executor(
        "local", ExecutorOptions(str(folder / "data" / "executor"), settings=settings)
    )


@contextmanager
def serving(folder: Path, users: Mapping[str, tuple[str, ...]]) -> Iterator[RunningService]:
    with run_service(folder, cluster=CLUSTER, executor=executor_in(folder), users=users) as live:
        yield live


def job(name: str, command: Any, user: str | None = USER, **more: Any) -> dict[str, Any]:
    run = {"command": command, "grace": "2s"} | ({} if user is None else {"user": user})
    return {
        "name": name,
        "tenant": "red",
        "minibatches": 5,
        "minibatch_time": "1s",
        "worker": {"cpu": 1},
        "utility": {"kind": "constant", "value": 1},
        "run": run | more,
    }


def state(live: RunningService, name: str) -> str:
    return str(live.client.get(f"/v1/jobs/{name}").json()["state"])


def test_job_runs_as_the_requested_user_without_further_rights(folder: Path) -> None:
    known = pwd.getpwnam(USER)
    with serving(folder, {"red": (USER,)}) as live:
        tree = folder / "users"
        look = LOOK.replace("{data}", str(folder / "data")).replace("{users}", str(tree))
        live.client.post(
            "/v1/jobs", json=job("a", look.replace("{job}", "$PWD/.."))
        ).raise_for_status()
        wait_until(
            lambda: state(live, "a") == "finished", lambda: live.client.get("/v1/jobs/a").text
        )
        lines = live.client.get("/v1/jobs/a/logs").json()["text"].split("\n")
        [own] = tree.iterdir()
        assert lines[:2] == [USER, str(known.pw_uid)]
        assert set(lines[2].split()) == set(map(str, os.getgrouplist(USER, known.pw_gid)))
        assert lines[3] == f"home={known.pw_dir} user={USER}"
        assert lines[4] == str(own / "work")
        assert lines[5:7] == ["2", "2"]  # the token and the database, the tree and its directory
        assert lines[7].split() == ["CapEff:", "0" * 16]
        assert lines[8].split() == ["NoNewPrivs:", "1"]
        for path in (own / "work", own / "checkpoints", own / "checkpoints" / "step"):
            assert path.stat().st_uid == known.pw_uid
            assert path.stat().st_mode & 0o077 == 0
        assert own.stat().st_uid == 0

        def points() -> list[float]:
            body = live.client.get("/v1/jobs/a/progress").json()["points"]
            return [point["minibatches"] for point in body]

        wait_until(lambda: points() == [1.0], points)
        driver = live.service.driver
        assert driver is not None
        driver._retention_ns = 0
        driver._last_purge = -1e9

        def swept() -> bool:
            driver._last_purge = -1e9
            return not own.exists()

        wait_until(swept)


def test_job_of_another_user_can_be_stopped_and_dies_with_its_supervisor(folder: Path) -> None:
    with serving(folder, {"*": (USER,)}) as live:
        for name in ("stopped", "orphan"):
            live.client.post("/v1/jobs", json=job(name, ["sleep", "600"])).raise_for_status()
            wait_until(lambda name=name: state(live, name) == "running")
        result = dict(_processes(folder).items())
        assert set(result.values()) == {"stopped", "orphan"}
        live.client.delete("/v1/jobs/stopped").raise_for_status()
        wait_until(lambda: set(_processes(folder).values()) == {"orphan"})
        [orphan] = _processes(folder)
        parent = int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: orphan not in _processes(folder))
        live.client.delete("/v1/jobs/orphan").raise_for_status()
        wait_until(lambda: not _processes(folder))


def _processes(folder: Path) -> dict[int, str]:
    """The jobs' processes below a folder, by number, without sleeping ones of others."""
    environments = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            if not (path / "cwd").readlink().is_relative_to(folder):
                continue
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"SHADOWPRICE_JOB="):
                environments[int(path.name)] = variable.partition(b"=")[2].decode()
    return environments


def test_inaccessible_working_directory_is_reported(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with serving(folder, {"red": (USER,)}) as live:
        request = job("a", ["true"], workdir=str(closed))
        live.client.post("/v1/jobs", json=request).raise_for_status()
        wait_until(lambda: state(live, "a") == "failed")
        body = live.client.get("/v1/jobs/a").json()["reason"]["message"]
        assert f"cannot enter its directory {closed}: Permission denied" in body


@pytest.mark.parametrize(
    ("users", "tenant", "user", "message"),
    [
        ({}, "red", USER, "leave it out"),
        ({"red": (USER,)}, "blue", USER, "is not allowed to this tenant; ask the operator"),
        ({"red": (USER,)}, "red", "daemon", "is not allowed to this tenant; one of: nobody"),
        ({"red": (USER,)}, "red", "root", "is not allowed"),
        ({"red": (USER,)}, "red", None, "each job must name its user here; one of: nobody"),
        ({"*": (USER,)}, "blue", "../x", "is not a valid user name"),
        ({"*": (USER,)}, "blue", "0", "is not a valid user name"),
    ],
)
def test_a_submission_with_a_forbidden_user_is_refused(
    folder: Path, users: Mapping[str, tuple[str, ...]], tenant: str, user: str | None, message: str
) -> None:
    with serving(folder, users) as live:
        request = job("a", ["true"], user) | {"tenant": tenant}
        with live.as_(live.token(tenant)) as client:
            for body in (request, {"jobs": [request]}):
                response = client.post("/v1/jobs", json=body)
                assert response.status_code == 422, response.text
                [error] = response.json()["errors"]
                assert error["location"].endswith("run.user")
                assert message in f"{error['message']}; {error['hint']}"
        assert live.client.get("/v1/jobs").json()["jobs"] == []


def test_a_job_whose_user_was_withdrawn_is_not_started(folder: Path) -> None:
    with serving(folder, {"red": (USER,)}) as live:
        waits = job("a", ["touch", str(folder / "ran")])
        live.client.patch("/v1/servers/g", json={"drain": True}).raise_for_status()
        live.client.post("/v1/jobs", json=waits).raise_for_status()
    with serving(folder, {"red": ("daemon",)}) as live:
        live.client.patch("/v1/servers/g", json={"drain": False}).raise_for_status()

        def kinds() -> dict[str, str]:
            events = live.client.get("/v1/jobs/a/explain").json()["events"]
            return {event["kind"]: str(event["data"].get("reason")) for event in events}

        wait_until(lambda: "start-failed" in kinds(), kinds)
        assert "is not allowed to this tenant; one of: daemon" in kinds()["start-failed"]
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"red": ("no-such-user",)}, "unknown user 'no-such-user'"),
        ({"red": ("root",)}, "jobs may not run as root"),
    ],
)
def test_unknown_and_root_users_are_refused_at_startup(
    folder: Path, users: Mapping[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(InputError, match=message), serving(folder, users):
        pass


def test_users_are_refused_if_the_executor_runs_as_one_user(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="this service runs all jobs as its own user"),
        run_service(
            tmp_path,
            cluster=CLUSTER,
            executor=RecordingExecutor(),
            observe=False,
            users={"*": (USER,)},
        ),
    ):
        pass


def test_jobs_do_not_start_if_others_can_write_the_directory_of_users(folder: Path) -> None:
    (folder / "users").mkdir()
    (folder / "users").chmod(0o777)
    with serving(folder, {"*": (USER,)}) as live:
        live.client.post("/v1/jobs", json=job("a", ["true"])).raise_for_status()

        def history() -> str:
            return str(live.client.get("/v1/jobs/a/explain").json()["events"])

        wait_until(lambda: "writable only by root" in history(), history)


@pytest.mark.parametrize("text", ["red", ":nobody", "red:"])
def test_rule_without_a_user_name_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-c", str(tmp_path / "c.yaml"), "--allow-user", text]) == 2
    assert "has no user name; write vision:alice" in capsys.readouterr().err
    assert parse_users(["a:b:c", "*:d", "*:e"]) == {"a:b": ("c",), "*": ("d", "e")}


def test_files_of_a_job_belong_to_its_user(folder: Path) -> None:
    content = member("d", DIR, mode=0o755) + member("d/train.sh", content=b"id -un; pwd\n") + END
    digest = hashlib.sha256(content).hexdigest()
    with serving(folder, {"red": (USER,)}) as live:
        response = live.client.put(
            f"/v1/uploads/{digest}?tenant=red",
            content=content,
            headers={"Content-Type": "application/x-tar"},
        )
        assert response.status_code == 201, response.text
        record = job("files", ["sh", "-c", "sh d/train.sh; stat -c %U d d/train.sh .; touch mine"])
        record["run"]["upload"] = digest
        assert live.client.post("/v1/jobs", json=record).status_code == 200
        wait_until(lambda: live.client.get("/v1/jobs/files").json()["state"] == "finished")
        [work] = (folder / "users").glob("*/work")
        lines = live.client.get("/v1/jobs/files/logs").json()["text"].splitlines()
        assert lines == [USER, str(work), USER, USER, USER]
        # Files that the job didn't change are deleted.
        wait_until(lambda: [path.name for path in work.rglob("*")] == ["mine"])
        names = {path.name for path in work.parent.glob("work*")}
        assert names == {"work", "work.released"}
