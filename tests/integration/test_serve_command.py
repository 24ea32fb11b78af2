"""``shadowprice serve``: refused starts, and recovery after a kill."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sqlite3
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text

from shadowprice.cli.main import main
from shadowprice.executors.contract import ExecutorError, ExecutorOptions
from shadowprice.executors.local.executor import LocalExecutor
from shadowprice.service.store import Store
from tests.support.service_process import ServiceProcess, refused_start
from tests.support.services import CLUSTER, job

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(dict(CLUSTER)))
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"steady": True}),
        (("-s", "steady=false"), {"steady": "false"}),
        (("-p", "fifo"), {}),
    ],
)
def test_served_policy_has_the_settings_for_real_jobs(
    monkeypatch: pytest.MonkeyPatch,
    cluster: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    expected: dict[str, object],
) -> None:
    begun = []
    monkeypatch.setattr(
        "shadowprice.service.server.serve", lambda settings, message: begun.append(settings)
    )
    assert main(["serve", "-c", str(cluster), "--data", str(tmp_path / "data"), *words]) == 0
    assert [settings.policy.settings for settings in begun] == [expected]


def test_port_in_use_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused_start(capsys, cluster, tmp_path / "d", "--listen", f"127.0.0.1:{port}")
    assert f"--listen 127.0.0.1:{port}: the port is in use" in line


@pytest.mark.parametrize("unknown", ["tables", "content"])
def test_data_of_an_unknown_format_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path, unknown: str
) -> None:
    store = Store(str(tmp_path / "d"))
    store.open()
    with store.transaction() as connection:
        if unknown == "tables":
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        else:
            store.put(connection, "format", "0")
    store.close()
    line = refused_start(capsys, cluster, tmp_path / "d")
    assert f"the unknown {'version' if unknown == 'tables' else 'format'}" in line
    assert "install the version of shadowprice that wrote" in line


def test_second_writer_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "d"))
    store.open()
    line = refused_start(capsys, cluster, tmp_path / "d")
    store.close()
    assert f"process {os.getpid()} writes there" in line


def test_second_service_is_refused_after_lock_files_were_removed(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    data = tmp_path / "d"
    service = ServiceProcess(data, cluster)
    try:
        for lock in data.rglob("lock"):
            lock.unlink()
        assert "another process writes there" in refused_start(capsys, cluster, data)
        assert "is in use by another service" in str(_open_executor(data / "executor"))
    finally:
        assert service.kill(signal.SIGTERM) == 143
    assert _open_executor(data / "executor") is None


def _open_executor(directory: Path) -> ExecutorError | None:
    """Open and close a local executor on a directory; return the error that refuses it."""

    async def scenario() -> ExecutorError | None:
        executor = LocalExecutor(ExecutorOptions(str(directory)))
        try:
            await executor.open()
        except ExecutorError as error:
            return error
        await executor.close()
        return None

    return asyncio.run(scenario())


def test_unreachable_database_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql+psycopg://somebody:secret@127.0.0.1:{port}/nothing"
    token = str(tmp_path / "token")
    line = refused_start(capsys, cluster, url, "--token-file", token)
    assert "cannot be opened" in line
    assert "secret" not in line


@pytest.mark.parametrize("url", ["mysql://x@y/z", "postgresql+asyncpg://x/y"])
def test_unsupported_database_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path, url: str
) -> None:
    line = refused_start(capsys, cluster, url, "--token-file", str(tmp_path / "token"))
    assert "cannot be used" in line
    assert "postgresql+psycopg://" in line


def test_readable_token_file_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    token = tmp_path / "d" / "operator.token"
    token.write_text("sp_abc\n")
    token.chmod(0o644)
    line = refused_start(capsys, cluster, tmp_path / "d")
    assert line.endswith(f"run: chmod 600 {token}")


def test_unwritable_token_file_leaves_nothing(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    (tmp_path / "loose").symlink_to("nowhere")
    for place in ("missing/token", "loose/token", "y" * 250):
        token = tmp_path / place
        line = refused_start(capsys, cluster, tmp_path / "d", "--token-file", str(token))
        assert f"{token}: cannot be written: " in line
        assert [*(tmp_path / "d").glob("*.db")] == []


@pytest.mark.parametrize(
    "options", [["--trainingjobs"], ["--executor", "kubernetes", "--address"]], ids=" ".join
)
def test_unreachable_cluster_address_leaves_nothing(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path, options: list[str]
) -> None:
    pytest.importorskip("kubernetes_asyncio")
    line = refused_start(capsys, cluster, tmp_path / "d", *options, str(tmp_path / "one"))
    assert "doesn't name a cluster: no such file" in line
    assert [*(tmp_path / "d").glob("*.db")] == []


def test_unreachable_api_server_leaves_nothing(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    pytest.importorskip("kubernetes_asyncio")
    with socket.socket() as closed:  # bound without a listener, so no request is answered
        closed.bind(("127.0.0.1", 0))
        config = tmp_path / "config"
        named = {"name": "here"}
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
        document = {
            "clusters": [{**named, "cluster": {"server": server}}],
            "users": [{**named, "user": {"token": "a"}}],
            "contexts": [{**named, "context": {"cluster": "here", "user": "here"}}],
            "current-context": "here",
        }
        config.write_text(yaml.safe_dump(document))
        more = ("--executor", "kubernetes", "--address", str(config))
        line = refused_start(capsys, cluster, tmp_path / "d", *more)
    assert "can't use Kubernetes: " + server in line
    assert [*(tmp_path / "d").glob("*.db")] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("memory",), "--executor-set: expected KEY=VALUE, got 'memory'"),
        (("memry=off",), "--executor-set 'memry': unknown setting; did you mean 'memory'?"),
        (("memory=much",), "--executor-set memory: 'much' is not valid; one of: auto, cgroup"),
        (("memory=off", "memory=auto"), "--executor-set: 'memory' is set twice"),
    ],
)
def test_invalid_executor_settings_are_refused(
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
    tmp_path: Path,
    given: tuple[str, ...],
    message: str,
) -> None:
    more = [word for entry in given for word in ("--executor-set", entry)]
    assert message in refused_start(capsys, cluster, tmp_path / "d", *more)


def test_data_path_that_is_a_file_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    hint = "name a directory; the first start creates it"
    line = refused_start(capsys, cluster, file)
    assert line.strip().endswith(f"{file}: is not a directory; {hint}")
    assert file.read_text() == "x"


def test_unknown_executor_is_refused(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    line = refused_start(capsys, cluster, tmp_path / "d", "--executor", "lokal")
    assert "unknown executor 'lokal'; did you mean 'local'?" in line
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--policy", "rollin", "did you mean 'rolling'?"),
        ("--listen", "here:now", "is not HOST:PORT"),
        ("--listen", f"here:{'9' * 5_000}", "is not HOST:PORT"),
        ("--listen", f"{'a' * 64}:0", "this machine has no such address; use 127.0.0.1"),
        ("--keep", "10 slots", "--keep: '10 slots' is in slots, not on the clock; write 365d"),
        ("--keep", "3", "--keep: '3' is a duration without a unit"),
        ("--keep", "-1d", "--keep: '-1d' is negative"),
        ("--until", "99999w", "--until: '99999w' is not a time; write 18:00"),
        ("--max-overrun", "inf", "'--max-overrun': must be at most 1,000,000,000,000"),
        ("--max-overrun", "0.5", "'--max-overrun': must be at least 1, got '0.5'"),
        ("--values", "own", "--values: expected auto, stated or relative, got 'own'"),
        ("--cluster", "/nowhere.yaml", "/nowhere.yaml"),
    ],
)
def test_invalid_options_are_refused(
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
    tmp_path: Path,
    option: str,
    value: str,
    message: str,
) -> None:
    assert message in refused_start(capsys, cluster, tmp_path / "d", option, value)
    assert not (tmp_path / "d").exists()


def test_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "fastapi" else find(name)
    )
    line = refused_start(capsys, cluster, tmp_path / "d")
    assert "pip install 'shadowprice[service]'" in line


def test_missing_extra_of_an_executor_is_named(
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    line = refused_start(capsys, cluster, tmp_path / "d", "--executor", "ray", "--address", "auto")
    assert "pip install 'shadowprice[ray]'" in line


def test_address_is_refused_for_the_local_executor(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    line = refused_start(capsys, cluster, tmp_path / "d", "--executor", "local", "--address", "a:1")
    assert "--address: the executor local runs jobs here; leave it out" in line


# ------------------------------------------------------------------ a process of its own


def test_running_jobs_survive_a_kill_and_are_adopted(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        yaml.safe_dump(
            {"slot": "1s", "horizon": 100, "servers": [{"name": "g", "capacity": {"cpu": 2}}]}
        )
    )
    marks = tmp_path / "marks"
    script = f"echo $$ >> {marks}; while [ ! -e {tmp_path / 'go'} ]; do sleep 0.1; done"
    record = {
        "name": "long",
        "minibatches": 100,
        "minibatch_time": "1s",
        "worker": {"cpu": 1},
        "utility": {"kind": "constant", "value": 1},
        "run": {"command": script},
    }
    service = ServiceProcess(tmp_path / "data", cluster)
    try:
        assert service.client.post("/v1/jobs", json=record).status_code == 200
        service.wait_for_state("long", {"running"})
    finally:
        assert service.kill(signal.SIGKILL) == -signal.SIGKILL
    pids = marks.read_text().split()
    assert len(pids) == 1
    os.kill(int(pids[0]), 0)  # it runs on
    service = ServiceProcess(tmp_path / "data", cluster)
    try:
        record_seen = service.wait_for_state("long", {"running"})
        assert record_seen["generation"] == 1
        (tmp_path / "go").touch()
        record_seen = service.wait_for_state("long", {"finished"})
        assert record_seen["generation"] == 1
        assert marks.read_text().split() == pids  # started once
        kinds = [
            entry["kind"] for entry in service.client.get("/v1/jobs/long/explain").json()["events"]
        ]
        assert kinds.count("started") == kinds.count("running") == kinds.count("finished") == 1
        backup = tmp_path / "backup.db"
        assert main(["backup", str(tmp_path / "data"), str(backup), "-o", "json"]) == 0
    finally:
        assert service.kill(signal.SIGTERM) == 143
    (tmp_path / "restored").mkdir()
    backup.rename(tmp_path / "restored" / "shadowprice.db")
    restored = Store(str(tmp_path / "restored"))
    assert restored.open()
    assert restored.get("format") == "1"
    restored.close()


def test_paths_that_are_not_utf_8_are_used(cluster: Path, tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "half\udcff", cluster)
    try:
        tokens = service.client.get("/v1/tokens").json()["tokens"]
    finally:
        assert service.kill(signal.SIGTERM) == 143
    [note] = [token["note"] for token in tokens]
    assert note.endswith(r"half\udcff/operator.token")


def test_backup_of_a_directory_without_database_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["backup", str(tmp_path), str(tmp_path / "b.db")]) == 2
    assert "not a data directory of a service" in capsys.readouterr().err
    (tmp_path / "shadowprice.db").touch()
    assert main(["backup", str(tmp_path), str(tmp_path / "b.db")]) == 2
    assert "not a database of a service, or damaged" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["shadowprice.db"]


def test_backup_replaces_only_backups(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data, mine, link = tmp_path / "data", tmp_path / "mine", tmp_path / "link"
    store = Store(str(data))
    store.open()
    store.close()
    mine.write_text("my notes")
    link.symlink_to(mine)
    for place, why in ((mine, "that this command did not write"), (link, "is a link")):
        assert main(["backup", str(data), str(place)]) == 2
        assert why in capsys.readouterr().err
    assert mine.read_text() == "my notes"
    for _ in range(2):
        assert main(["backup", str(data), str(tmp_path / "kept.db")]) == 0
    assert (tmp_path / "kept.db").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "kept.db", "link", "mine"]


@pytest.mark.parametrize("open_now", [True, False])
def test_a_backup_never_replaces_a_database_that_a_service_works_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, open_now: bool
) -> None:
    folders = tmp_path / "data", tmp_path / "other"
    stores = [Store(str(folder)) for folder in folders]
    for store in stores:
        store.open()
        if not open_now:
            store.close()
    data, other = folders
    (tmp_path / "link").symlink_to(data)
    (tmp_path / "hard.db").hardlink_to(data / "shadowprice.db")
    targets = {
        data / "shadowprice.db": "works with",
        tmp_path / "link" / "shadowprice.db": "works with",
        data / ".." / "data" / "shadowprice.db": "works with",
        tmp_path / "hard.db": "works with",
        other / "shadowprice.db": "works with",
        data / "shadowprice.db-journal": "a part of the database",
        tmp_path / "link" / "shadowprice.db-journal": "a part of the database",
        data / "shadowprice.db-wal": "a part of the database",
        data / "shadowprice.db-shm": "a part of the database",
    }
    kept = [folder / "shadowprice.db" for folder in folders]
    before = [(file.stat().st_ino, file.read_bytes()) for file in kept]
    for target, why in targets.items():
        assert main(["backup", str(data), str(target)]) == 2, target
        captured = capsys.readouterr().err
        assert why in captured
        assert "remove" not in captured
    assert [(file.stat().st_ino, file.read_bytes()) for file in kept] == before
    assert not list(data.glob("*.part"))
    if open_now:
        for store in stores:
            with store.transaction() as connection:
                store.put(connection, "after", "all")
            assert store.get("after") == "all"
            store.close()


def test_backup_is_refused_beside_a_leftover_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "data"))
    store.open()
    store.close()
    (tmp_path / "kept.db-wal").write_bytes(b"of a database that is gone")
    assert main(["backup", str(tmp_path / "data"), str(tmp_path / "kept.db")]) == 2
    assert "kept.db-wal, beside it" in capsys.readouterr().err
    assert not (tmp_path / "kept.db").exists()


OBSERVING = ("--observe", "--executor", "none")


def _damage(file: Path, kept: int = 60) -> None:
    """Overwrite the pages of a database after the first ones, which describe its tables."""
    page = 4096
    content = bytearray(file.read_bytes())
    assert len(content) > 2 * kept * page
    content[kept * page :] = b"\xa5" * (len(content) - kept * page)
    with file.open("r+b") as opened:
        opened.write(content)


def _filled(folder: Path, cluster: Path) -> Path:
    """Data of a service with a long journal and many events."""
    service = ServiceProcess(folder, cluster, *OBSERVING)
    try:
        assert service.client.post("/v1/jobs", json=job("a")).status_code == 200
    finally:
        assert service.kill(signal.SIGTERM) == 143
    file = folder / "shadowprice.db"
    with sqlite3.connect(file) as connection:
        connection.executemany(
            "INSERT INTO events (id, at, kind, decision, job, tenant, data) "
            "VALUES (?, 0, 'revised', 0, 'a', NULL, ?)",
            [
                (1_000_000 + index, '{"changes": {"labels": "' + 500 * "x" + '"}}')
                for index in range(2_000)
            ],
        )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return file


def test_damaged_database_is_refused_with_a_restore_hint(
    capsys: pytest.CaptureFixture[str], cluster: Path, tmp_path: Path
) -> None:
    file = _filled(tmp_path / "data", cluster)
    service = ServiceProcess(tmp_path / "data", cluster, *OBSERVING)
    try:
        assert service.client.get("/readyz").status_code == 200
        _damage(file)
        answers = [service.client.get("/v1/jobs/a/events") for _ in range(2)]
        assert service.client.get("/readyz").status_code == 503
    finally:
        service.kill(signal.SIGKILL)
    hint = "copy a backup there as shadowprice.db"
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "storage")
        assert f"{file}: is damaged: database disk image is malformed" in answer.json()["detail"]
        assert hint in answer.json()["detail"]
    for left in tmp_path.glob("data/*-*"):
        left.unlink()

    # A reader of all pages, and the first page of all.
    assert main(["backup", str(tmp_path / "data"), str(tmp_path / "copy.db")]) == 1
    captured = capsys.readouterr().err
    assert f"{file}: is damaged" in captured
    assert hint in captured
    assert not (tmp_path / "copy.db").exists()
    for kept in (3, 0):
        with file.open("r+b") as opened:
            opened.seek(kept * 4096)
            opened.write(b"\xa5" * (file.stat().st_size - kept * 4096))
        arguments = ["serve", "-c", str(cluster), "--data", str(tmp_path / "data"), "-q"]
        assert main([*arguments, "-p", "fifo", "--listen", "127.0.0.1:0"]) in {1, 2}
        captured = capsys.readouterr().err
        assert f"error: {file}: is damaged: " in captured
        assert hint in captured
