"""The data directory of a live service: private, and never silently empty."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from shadowprice.core.errors import InputError
from shadowprice.service.store import Store
from tests.support.restore_scenario import RestoreScenario, submit
from tests.support.service_process import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

DATABASE = ("shadowprice.db", "shadowprice.db-wal", "shadowprice.db-shm")


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[RestoreScenario]:
    scenario = RestoreScenario(tmp_path)
    yield scenario
    for marks in tmp_path.glob("marks-*"):
        for process in scenario.alive(marks.name.removeprefix("marks-")):
            os.kill(process, signal.SIGKILL)


def _refusal(scenario: RestoreScenario) -> str:
    """Start a service that is refused; return its log."""
    try:
        service = ServiceProcess(scenario.data, scenario.cluster)
    except AssertionError:
        return scenario.log.read_text()
    service.kill(signal.SIGKILL)
    pytest.fail("the service started")


@contextmanager
def _serving(scenario: RestoreScenario, end: int = signal.SIGTERM) -> Iterator[ServiceProcess]:
    """Run a service and end it by a signal; after an error, kill it."""
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        yield service
    except BaseException:
        service.kill(signal.SIGKILL)
        raise
    service.kill(end)


def _open_to_others(folder: Path) -> list[Path]:
    paths = [folder, *folder.rglob("*")]
    return [path for path in paths if not path.is_symlink() and path.stat().st_mode & 0o077]


def test_world_readable_data_directory_becomes_private(scenario: RestoreScenario) -> None:
    for folder in (scenario.data, scenario.data / "executor"):
        folder.mkdir()
        folder.chmod(0o755)  # as systemd's StateDirectory and volumes are
    with _serving(scenario, signal.SIGKILL) as service:
        submit(service, scenario.job("secret", "secret", env={"TOKEN": "s3cret"}))
        service.wait_for_state("secret", {"running"})
        assert _open_to_others(scenario.data) == []
    scenario.data.chmod(0o755)
    for name in DATABASE:
        (scenario.data / name).chmod(0o644)
    with _serving(scenario) as service:
        assert _open_to_others(scenario.data) == []
        scenario.go("secret")
        service.wait_for_state("secret", {"finished"})


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_directory_with_foreign_files_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "shared"
    data.mkdir()
    (data / "notes").touch()
    data.chmod(mode)
    with pytest.raises(InputError, match="that no service wrote; use an empty or new directory"):
        Store(str(data)).open()
    assert data.stat().st_mode & 0o7777 == mode
    assert [path.name for path in data.iterdir()] == ["notes"]


def test_a_new_volume_becomes_private_and_keeps_its_other_bits(tmp_path: Path) -> None:
    data = tmp_path / "volume"
    (data / "lost+found").mkdir(parents=True)
    data.chmod(0o3775)
    store = Store(str(data))
    for _ in range(2):
        store.open()
        store.close()
        assert data.stat().st_mode & 0o7777 == 0o3700
        data.chmod(0o3775)


def test_unusable_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "shadowprice.db"
    file.symlink_to(file)
    with pytest.raises(InputError) as refusal:
        Store(str(tmp_path)).open()
    assert f"--data {tmp_path}: cannot use {file}: " in str(refusal.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("has_database", [False, True])
def test_a_directory_of_another_user_is_refused_with_a_remedy(has_database: bool) -> None:
    folder = Path(tempfile.mkdtemp())
    reading, writing = os.pipe()
    try:
        folder.chmod(0o755)
        data = folder / "data"
        data.mkdir()
        if has_database:
            (data / "shadowprice.db").touch()
        data.chmod(0o777)
        before = [*data.iterdir()]
        child = os.fork()
        if not child:
            os.setgroups([])
            os.setresuid(65_534, 65_534, 65_534)
            try:
                Store(str(data)).open()
            except InputError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            output = stream.read()
        assert output.startswith(f"--data {data}: other users can ")
        other = "run as its owner" if has_database else f"give --data {data / 'service'}"
        assert f"make this user its owner (chown), or {other}" in output
        assert [*data.iterdir()] == before
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("how", ["database", "all", "emptied", "log"])
def test_a_lost_database_is_refused_until_a_backup_is_restored(
    scenario: RestoreScenario, how: str
) -> None:
    with _serving(scenario, signal.SIGKILL) as service:
        submit(service, scenario.job("kept", "kept"))
        service.wait_for_state("kept", {"running"})
        wait_until(lambda: scenario.alive("kept"))
        scenario.back_up()
    database, log, index = (scenario.data / name for name in DATABASE)
    if how == "emptied":
        os.truncate(database, 0)
    for lost in {"database": [database], "log": [log, index]}.get(how, []):
        lost.unlink()
    if how == "all":
        for file in scenario.data.glob("shadowprice.db*"):
            file.unlink()
    what = "is empty" if how == "emptied" else "is missing"
    for _ in range(2):  # the refusal leaves the directory as it is
        message = _refusal(scenario)
        assert f"{log if how == 'log' else database}: {what}" in message
        assert "copy a backup there as shadowprice.db" in message
    assert len(scenario.alive("kept")) == 1

    scenario.restore(scenario.data)
    with _serving(scenario) as service:
        assert service.client.get("/v1/jobs/kept").json()["state"] == "running"
        scenario.go("kept")
        service.wait_for_state("kept", {"finished"})
    assert len(scenario.began("kept")) == 1


def _used_store(folder: Path) -> Store:
    """Return a store with data, whose log is empty."""
    store = Store(str(folder))
    store.open()
    store.mark_used()
    with store.transaction() as connection:
        store.put(connection, "format", "1")
    store.close()
    store.open()
    store.mark_used()
    return store


@pytest.mark.parametrize("kept", [0.0, 0.4, 0.999])
def test_truncated_log_is_refused(tmp_path: Path, kept: float) -> None:
    """SQLite reads the complete part; the newest acknowledged changes would be lost silently."""
    store = _used_store(tmp_path / "whole")
    for number in range(50):
        with store.transaction() as connection:
            store.put(connection, f"key-{number}", "x" * 500)
    copied = tmp_path / "copied"  # as after a kill
    shutil.copytree(tmp_path / "whole", copied)
    store.close()
    log, index = (copied / name for name in DATABASE[1:])
    size = log.stat().st_size
    os.truncate(log, int(size * kept))
    store = Store(str(copied))
    for _ in range(2):
        with pytest.raises(InputError, match="is cut off or damaged") as refusal:
            store.open()
        assert f"remove {index}" in str(refusal.value)
    index.unlink()
    store.open()
    assert store.get("key-49") is None
    store.close()


def test_log_with_damaged_end_is_refused(tmp_path: Path) -> None:
    store = _used_store(tmp_path / "whole")
    with store.transaction() as connection:
        store.put(connection, "key", "value")
    intact, damaged = tmp_path / "intact", tmp_path / "damaged"
    for copy in (intact, damaged):
        shutil.copytree(tmp_path / "whole", copy)
    store.close()
    log = damaged / DATABASE[1]
    content = bytearray(log.read_bytes())
    used = len(content) // (24 + 4096) * (24 + 4096) + 32 - (24 + 4096)
    content[used + 20] ^= 1
    log.write_bytes(content)
    with pytest.raises(InputError, match="is cut off or damaged"):
        Store(str(damaged)).open()
    store = Store(str(intact))
    store.open()
    assert store.get("key") == "value"
    store.close()


def test_log_checkpointed_by_another_program_is_refused(scenario: RestoreScenario) -> None:
    with _serving(scenario):
        pass  # an ordered stop leaves no log
    with _serving(scenario, signal.SIGKILL) as service:
        submit(service, scenario.job("kept", "kept"))
    with closing(sqlite3.connect(scenario.data / "shadowprice.db")) as connection:
        connection.execute("SELECT count(*) FROM jobs").fetchone()
    assert not (scenario.data / "shadowprice.db-wal").exists()
    record = scenario.data / "store-state"
    assert f"remove {record}" in _refusal(scenario)
    record.unlink()
    with _serving(scenario) as service:
        assert service.client.get("/v1/jobs/kept").status_code == 200


def test_a_stop_while_another_program_reads_the_database(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.open()
    store.mark_used()
    with store.transaction() as connection:
        store.put(connection, "format", "1")
    with closing(sqlite3.connect(store.file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM meta").fetchall()
        store.close()
    assert not (tmp_path / "shadowprice.db-wal").exists()  # the reader has written it
    record = tmp_path / "store-state"
    with pytest.raises(InputError, match="was open on") as refusal:
        store.open()
    assert f"it wrote them there: remove {record}; otherwise stop" in str(refusal.value)
    record.unlink()
    store.open()
    assert store.get("format") == "1"
    store.close()


def test_a_database_that_is_removed_while_the_service_runs(scenario: RestoreScenario) -> None:
    database, moved = scenario.data / "shadowprice.db", scenario.folder / "moved.db"
    with _serving(scenario) as service:
        database.rename(moved)
        response = service.client.post("/v1/jobs", json=scenario.job("a", "a"))
        assert (response.status_code, response.json()["code"]) == (503, "storage")
        assert service.client.get("/readyz").status_code == 503
        assert not database.exists()
        moved.rename(database)
        wait_until(lambda: service.client.get("/readyz").status_code == 200)
        submit(service, scenario.job("a", "a"))
