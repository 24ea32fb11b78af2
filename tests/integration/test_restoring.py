"""A backup is restored after further changes, with real processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.service.execution.modes import IDENTITY_KEY
from shadowprice.service.store import Store
from tests.support.archives import END, member
from tests.support.restore_scenario import RestoreScenario, run_probe, submit
from tests.support.service_process import ServiceProcess, refused_start
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[RestoreScenario]:
    scenario = RestoreScenario(tmp_path)
    yield scenario
    for marks in tmp_path.glob("marks-*"):
        for process in scenario.alive(marks.name.removeprefix("marks-")):
            os.kill(process, signal.SIGKILL)


def test_generation_unknown_to_the_restored_store_is_stopped(scenario: RestoreScenario) -> None:
    service = ServiceProcess(scenario.data, scenario.cluster)
    scenario.back_up()
    submit(service, scenario.job("orphan", "orphan"))
    service.wait_for_state("orphan", {"running"})
    wait_until(lambda: scenario.alive("orphan"))
    service.kill(signal.SIGKILL)
    assert len(scenario.alive("orphan")) == 1
    scenario.restore(scenario.data)
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        wait_until(lambda: not scenario.alive("orphan"))
        assert service.client.get("/v1/jobs/orphan").status_code == 404
    finally:
        service.kill(signal.SIGTERM)
    assert "stopping generation 1 of 'orphan' on g: the store" in scenario.log.read_text()


def test_job_with_the_name_of_an_orphan_runs_its_own_command(scenario: RestoreScenario) -> None:
    """Generation 1 of the new job is refused, because the orphan used that number."""
    service = ServiceProcess(scenario.data, scenario.cluster)
    scenario.back_up()
    submit(service, scenario.job("same", "old"))
    service.wait_for_state("same", {"running"})
    wait_until(lambda: scenario.alive("old"))
    service.kill(signal.SIGKILL)
    scenario.restore(scenario.data)
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        submit(service, scenario.job("same", "new"))
        wait_until(lambda: scenario.alive("new"))
        assert scenario.alive("old") == []
        scenario.go("new")
        record = service.wait_for_state("same", {"finished"})
        assert record["generation"] == 2
        assert len(scenario.began("new")) == len(scenario.began("old")) == 1
        events = service.client.get("/v1/jobs/same/explain").json()["events"]
        assert [event["data"]["servers"] for event in events if event["kind"] == "foreign"] == [
            ["g"]
        ]
    finally:
        service.kill(signal.SIGTERM)


def test_service_killed_during_cleanup_does_not_adopt_the_orphan(scenario: RestoreScenario) -> None:
    """The restarted service has commanded the orphan's number, too."""
    service = ServiceProcess(scenario.data, scenario.cluster)
    scenario.back_up()
    submit(service, scenario.slow(scenario.job("same", "old")))
    service.wait_for_state("same", {"running"})
    wait_until(lambda: scenario.alive("old"))
    service.kill(signal.SIGKILL)
    scenario.restore(scenario.data)
    service = ServiceProcess(scenario.data, scenario.cluster)
    submit(service, scenario.job("same", "new"))
    wait_until(lambda: service.client.get("/v1/jobs/same").json()["generation"] == 1)
    orphan = GenerationStore(scenario.data / "executor").generation("same", 1)
    wait_until(lambda: orphan.stop()["command"])
    run_probe(service)
    service.kill(signal.SIGKILL)
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        run_probe(service)
        assert len(scenario.alive("old")) == 1
        assert not scenario.began("new")
        (scenario.folder / "saved").touch()
        wait_until(lambda: scenario.alive("new"))
        assert not scenario.alive("old")
        scenario.go("new")
        assert service.wait_for_state("same", {"finished"})["generation"] == 2
        events = service.client.get("/v1/jobs/same/explain").json()["events"]
        first = {event["kind"] for event in events if event["data"].get("generation") == 1}
        assert first == {"started", "foreign", "start-failed"}  # neither running nor lost
    finally:
        service.kill(signal.SIGTERM)


def test_no_job_starts_on_a_server_with_a_running_orphan(scenario: RestoreScenario) -> None:
    """It saves for a while; the engine believes its server empty."""
    service = ServiceProcess(scenario.data, scenario.cluster)
    scenario.back_up()
    orphan = scenario.slow(scenario.job("orphan", "orphan"))
    orphan["worker"]["cpu"] = 2
    submit(service, orphan)
    service.wait_for_state("orphan", {"running"})
    wait_until(lambda: scenario.alive("orphan"))
    service.kill(signal.SIGKILL)
    scenario.restore(scenario.data)
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        submit(service, scenario.job("next", "next"))
        run_probe(service)
        assert scenario.alive("orphan")
        assert not scenario.began("next")
        (scenario.folder / "saved").touch()
        wait_until(lambda: scenario.alive("next"))
        assert not scenario.alive("orphan")
        assert service.client.get("/v1/jobs/next").json()["generation"] == 1
    finally:
        scenario.go("next")
        service.kill(signal.SIGTERM)


def test_job_started_before_the_backup_keeps_running(scenario: RestoreScenario) -> None:
    service = ServiceProcess(scenario.data, scenario.cluster)
    submit(service, scenario.job("kept", "kept"))
    service.wait_for_state("kept", {"running"})
    wait_until(lambda: scenario.alive("kept"))
    scenario.back_up()
    service.kill(signal.SIGKILL)
    scenario.restore(scenario.data)
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        run_probe(service)
        scenario.go("kept")
        assert service.wait_for_state("kept", {"finished"})["generation"] == 1
        assert len(scenario.began("kept")) == 1
        assert "the store has no command" not in scenario.log.read_text()
    finally:
        service.kill(signal.SIGTERM)


def test_generation_numbers_used_since_the_backup_are_skipped(scenario: RestoreScenario) -> None:
    service = ServiceProcess(scenario.data, scenario.cluster)
    record = scenario.job("moved", "moved", retries=9)
    fail = scenario.folder / "fail"
    first = f'[ "$SHADOWPRICE_GENERATION" -lt 3 ] && until [ -e {fail} ]; do sleep 0.05; done'
    command = record["run"]["command"]
    record["run"]["command"] = f"{first} && exit 1; {command}"
    submit(service, record)
    service.wait_for_state("moved", {"running"})
    scenario.back_up()
    fail.touch()
    wait_until(lambda: scenario.alive("moved"))
    assert service.client.get("/v1/jobs/moved").json()["generation"] == 3
    service.kill(signal.SIGKILL)
    scenario.restore(scenario.data)
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        wait_until(lambda: len(scenario.began("moved")) == 2)
        assert len(scenario.alive("moved")) == 1
        scenario.go("moved")
        assert service.wait_for_state("moved", {"finished"})["generation"] == 4
        events = service.client.get("/v1/jobs/moved/explain").json()["events"]
        stale = [event["data"]["generation"] for event in events if event["kind"] == "start-failed"]
        assert stale == [1, 2, 3]
    finally:
        service.kill(signal.SIGTERM)


def test_copy_in_another_directory_is_refused_and_runs_nothing_twice(
    scenario: RestoreScenario, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the backup is restored at its original location."""
    service = ServiceProcess(scenario.data, scenario.cluster)
    submit(service, scenario.job("once", "once"))
    service.wait_for_state("once", {"running"})
    wait_until(lambda: scenario.alive("once"))
    scenario.back_up()
    capsys.readouterr()
    service.kill(signal.SIGKILL)
    elsewhere = scenario.folder / "elsewhere"
    scenario.restore(elsewhere)
    for _ in range(2):
        line = refused_start(capsys, scenario.cluster, elsewhere)
        assert f"records in {elsewhere}/executor don't belong to these data; running jobs" in line
        assert "start with the executor directory that these data were used with" in line
        assert "--nothing-runs" in line
    assert not (elsewhere / "executor").exists()
    assert len(scenario.began("once")) == 1
    scenario.restore(scenario.data)
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        run_probe(service)
        scenario.go("once")
        assert service.wait_for_state("once", {"finished"})["generation"] == 1
        assert len(scenario.began("once")) == 1
    finally:
        service.kill(signal.SIGTERM)


def test_records_of_other_data_are_refused(
    scenario: RestoreScenario, capsys: pytest.CaptureFixture[str]
) -> None:
    service = ServiceProcess(scenario.data, scenario.cluster)
    scenario.back_up()
    service.kill(signal.SIGTERM)
    other = ServiceProcess(scenario.folder / "other", scenario.cluster)
    other.kill(signal.SIGTERM)
    capsys.readouterr()
    scenario.restore(scenario.folder / "other")
    assert "don't belong to these data" in refused_start(
        capsys, scenario.cluster, scenario.folder / "other"
    )


def test_running_jobs_without_a_recorded_executor_are_refused(
    scenario: RestoreScenario, capsys: pytest.CaptureFixture[str]
) -> None:
    service = ServiceProcess(scenario.data, scenario.cluster)
    submit(service, scenario.job("old", "old"))
    service.wait_for_state("old", {"running"})
    wait_until(lambda: scenario.alive("old"))
    service.kill(signal.SIGKILL)
    store = Store(str(scenario.data))
    assert store.open()
    with store.transaction() as connection:
        connection.exec_driver_sql(f"DELETE FROM meta WHERE key = '{IDENTITY_KEY}'")
    store.close()
    assert "don't belong to these data" in refused_start(capsys, scenario.cluster, scenario.data)


def test_copy_continues_with_new_numbers_once_nothing_runs(scenario: RestoreScenario) -> None:
    service = ServiceProcess(scenario.data, scenario.cluster)
    submit(service, scenario.job("again", "again"))
    service.wait_for_state("again", {"running"})
    wait_until(lambda: scenario.alive("again"))
    scenario.back_up()
    service.kill(signal.SIGKILL)
    for process in scenario.alive("again"):
        os.kill(process, signal.SIGKILL)  # its machine is off
    wait_until(lambda: not scenario.alive("again"))
    elsewhere = scenario.folder / "elsewhere"
    scenario.restore(elsewhere)
    service = ServiceProcess(elsewhere, scenario.cluster, "--nothing-runs")
    try:
        wait_until(lambda: scenario.alive("again"))
        events = service.client.get("/v1/jobs/again/explain").json()["events"]
        assert [event["data"]["generation"] for event in events if event["kind"] == "lost"] == [1]
    finally:
        service.kill(signal.SIGKILL)
    service = ServiceProcess(elsewhere, scenario.cluster)  # its records are here now
    try:
        scenario.go("again")
        assert service.wait_for_state("again", {"finished"})["generation"] == 2
        assert len(scenario.began("again")) == 2
    finally:
        service.kill(signal.SIGTERM)


def test_subscriber_resuming_after_a_restore_misses_no_event(scenario: RestoreScenario) -> None:
    """Events that the backup lacks had numbers, which later events must not reuse."""

    def receive_until(after: int, kind: str, job: str) -> tuple[int, list[int]]:
        """Resume after a number, until an event; return its number and all numbers on the way."""
        numbers: list[int] = []
        headers = {"Last-Event-ID": str(after)}
        with service.client.stream("GET", "/v1/events", headers=headers) as stream:
            for line in stream.iter_lines():
                if line.startswith("id: "):
                    numbers.append(int(line[4:]))
                if line.startswith("data: ") and numbers:
                    event = json.loads(line[6:])
                    if (event.get("kind"), event.get("job")) == (kind, job):
                        return int(event["id"]), numbers
        raise AssertionError("the stream ended")

    service = ServiceProcess(scenario.data, scenario.cluster)
    submit(service, scenario.job("early", "early"))
    last_of_backup, _ = receive_until(0, "running", "early")
    scenario.back_up()
    for index in range(3):
        submit(service, scenario.job(f"lost-{index}", "lost"))
    last, lost = receive_until(last_of_backup, "submitted", "lost-2")
    service.kill(signal.SIGKILL)
    for _ in range(2):  # the same backup may be restored twice
        scenario.restore(scenario.data)
        service = ServiceProcess(scenario.data, scenario.cluster)
        try:
            submit(service, scenario.job("after", "after"))
            _, numbers = receive_until(last, "submitted", "after")
            assert numbers == sorted(set(numbers))
            assert not set(numbers) & set(lost)
            _, every = receive_until(0, "submitted", "after")
            assert [number for number in every if number > last_of_backup][
                : len(numbers)
            ] == numbers
            last, lost = receive_until(0, "submitted", "after")[0], [*lost, *numbers]
        finally:
            service.kill(signal.SIGKILL)
    for mark in ("early", "lost", "after"):
        scenario.go(mark)


def uploaded(service: ServiceProcess, script: str) -> str:
    """Upload a directory with a script; return its digest."""
    content = member("run.sh", content=script.encode()) + END
    digest = hashlib.sha256(content).hexdigest()
    response = service.client.put(
        f"/v1/uploads/{digest}",
        content=content,
        headers={"Content-Type": "application/x-tar"},
    )
    assert response.status_code in {200, 201}, response.text
    return digest


def test_a_waiting_job_starts_elsewhere_with_its_files(
    scenario: RestoreScenario, capsys: pytest.CaptureFixture[str]
) -> None:
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        first = scenario.job("first", "first")
        first["worker"]["cpu"] = 2
        submit(service, first)
        service.wait_for_state("first", {"running"})
        digests = [uploaded(service, f"echo {name}") for name in ("kept", "over", "damaged")]
        for name, digest in zip(("kept", "over", "damaged"), digests, strict=True):
            record = scenario.job(name, name)
            submit(service, record | {"run": {"command": "sh run.sh", "upload": digest}})
        capsys.readouterr()
        scenario.back_up()
        written = json.loads(capsys.readouterr().out)
        assert (written["uploads"]["count"], written["uploads"]["incomplete_jobs"]) == (3, [])
        before = {file.name: file.stat().st_ino for file in scenario.uploads.glob("*/*")}
        assert before.keys() == {f"{digest}.tar" for digest in digests}
        assert scenario.uploads.stat().st_mode & 0o777 == 0o700

        service.client.delete("/v1/jobs/over")
        [damaged] = scenario.data.glob(f"uploads/*/{digests[2]}.tar")
        damaged.write_bytes(bytes(damaged.stat().st_size))
        [copy] = scenario.uploads.glob(f"*/{digests[2]}.tar")
        copy.unlink()
        copy.with_name("killed.part").touch()
        scenario.back_up()
        captured = capsys.readouterr()
        written = json.loads(captured.out)
        assert (written["uploads"]["count"], written["uploads"]["incomplete_jobs"]) == (
            1,
            ["damaged"],
        )
        assert "the submitted files of 'damaged' are missing or damaged" in captured.err
        kept = {file.name: file.stat().st_ino for file in scenario.uploads.glob("*/*")}
        assert kept == {name: before[name] for name in [f"{digests[0]}.tar"]}  # not copied again
    finally:
        service.kill(signal.SIGKILL)
    for process in scenario.alive("first"):
        os.kill(process, signal.SIGKILL)  # its machine is off
    wait_until(lambda: not scenario.alive("first"))
    elsewhere = scenario.folder / "elsewhere"
    scenario.restore(elsewhere)
    elsewhere.chmod(0o700)
    shutil.copytree(scenario.uploads, elsewhere / "uploads")
    service = ServiceProcess(elsewhere, scenario.cluster, "--nothing-runs")
    try:
        scenario.go("first")
        service.wait_for_state("kept", {"finished"})
        assert service.client.get("/v1/jobs/kept/logs").json()["text"] == "kept\n"
        events = "/v1/jobs/damaged/events"
        wait_until(lambda: "its files are missing" in service.client.get(events).text)
    finally:
        service.kill(signal.SIGTERM)


def test_backup_replaces_no_foreign_folder(
    scenario: RestoreScenario, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(scenario.data))
    store.open()
    store.close()
    owner = scenario.uploads / ("0" * 32)
    for path in (
        scenario.uploads,
        scenario.uploads / "notes",
        owner / "notes",
        owner / "dir" / "x",
    ):
        shutil.rmtree(scenario.uploads, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        capsys.readouterr()
        assert main(["backup", str(scenario.data), str(scenario.backup)]) == 2
        assert f"{scenario.uploads}" in capsys.readouterr().err
        assert path.read_text() == "mine"
        assert not scenario.backup.exists()
        if path == scenario.uploads:
            path.unlink()
