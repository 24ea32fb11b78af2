"""Jobs whose service doesn't see the directory that they were submitted from."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shadowprice.cli import plain_job
from shadowprice.cli.main import main
from shadowprice.client import AsyncClient, Client
from shadowprice.core.errors import InputError
from shadowprice.executors.contract import ExecutorError, ExecutorOptions, UnpacksFiles
from shadowprice.executors.registry import create_executor
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND
from shadowprice.service.execution import reconciler
from shadowprice.service.problems import ProblemError
from shadowprice.service.service import Service
from shadowprice.service.settings import ServiceSettings
from shadowprice.service.state import report_operations
from shadowprice.service.uploads import KEEP_SECONDS, MIN_ACCOUNTED_BYTES, MIN_KEEP_SECONDS
from shadowprice.uploads.packing import pack, select_files, temporary_archive
from tests.support.archives import END, HOSTILE, describe_tree, make_tree, member
from tests.support.services import RunningService, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.processes

CLUSTER = {"slot": "1s", "horizon": 100, "servers": [{"name": "g", "capacity": {"cpu": 4}}]}
TAR = {"Content-Type": "application/x-tar"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("uploads")
    options = ExecutorOptions(str(folder / "data" / "executor"), settings={"cgroup": "off"})
    with run_service(folder, cluster=CLUSTER, executor=create_executor("local", options)) as found:
        yield found


@pytest.fixture(autouse=True)
def _submitter(live: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    monkeypatch.setenv("SHADOWPRICE_TOKEN", live.service.token_file.read_text().strip())


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    make_tree(folder)
    monkeypatch.chdir(folder)
    return folder


def archive(folder: Path) -> tuple[bytes, str]:
    stream = io.BytesIO()
    digest = pack(select_files(folder, max_bytes=1 << 30), stream)
    return stream.getvalue(), digest


def put(client: Any, content: bytes, digest: str | None = None, **more: Any) -> Any:
    digest = digest or hashlib.sha256(content).hexdigest()
    return client.put(f"/v1/uploads/{digest}", content=content, headers=TAR, **more)


@contextmanager
def begun_upload(live: RunningService, token: str = "") -> Iterator[socket.socket]:
    """Return a connection to which an upload of 5000 bytes was written, but most of its body."""
    bearer = f"Bearer {token}" if token else live.client.headers["authorization"]
    with socket.create_connection((live.client.base_url.host, live.client.base_url.port)) as raw:
        head = f"PUT /v1/uploads/{'0' * 64} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n"
        head += f"Authorization: {bearer}\r\n"
        raw.sendall(f"{head}Content-Type: application/x-tar\r\n\r\nbeginning".encode())
        yield raw


def stored_files(live: RunningService) -> list[Path]:
    return sorted((live.service.store.folder / "uploads").glob("*/*"))


def submit(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert main(["submit", "-o", "json", *words]) == status
    captured = capsys.readouterr()
    return (json.loads(captured.out) if status == 0 else None), captured.err


def log_of(live: RunningService, job: dict[str, Any]) -> str:
    return str(live.client.get(f"/v1/jobs/id:{job['id']}/logs").json()["text"])


LIST = """\
import json, os, stat, sys
found = {}
for folder, folders, files in os.walk(b"."):
    for name in folders + files:
        path = os.path.join(folder, name)
        status = os.lstat(path)
        kind = stat.S_ISLNK(status.st_mode)
        what = os.readlink(path) if kind else (open(path, "rb").read() if name in files else b"")
        found[os.fsdecode(path[2:])] = [
            None if kind else stat.S_IMODE(status.st_mode), what.hex(), int(status.st_mtime)]
json.dump({"cwd": os.getcwd(), "found": found}, sys.stdout)
"""


def test_a_job_gets_the_files_of_its_directory(
    live: RunningService, capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    (root / ".gitignore").write_text("data/\n")
    (root / "data").mkdir()
    (root / "data" / "large").write_bytes(bytes(1000))
    (root / "outside").symlink_to("/etc/passwd")
    words = ("--upload", "--wait", "--", sys.executable, "-c", LIST)
    [job], notes = submit(capsys, *words)
    assert "left out links to outside and special files: 'outside' -> '/etc/passwd'" in notes
    count = len(select_files(root, max_bytes=1 << 30).files)
    assert f"sent {count} entries of {root} (" in notes
    assert job["state"] == "finished", job
    result = json.loads(log_of(live, job))
    assert result["cwd"] != str(root)
    expected = {}
    for name, (what, mtime) in describe_tree(root).items():
        if name in {"outside", "data", "data/large"}:
            continue
        sent = "train.py" if name == "inside" else what
        mode, content = (None, os.fsencode(sent)) if isinstance(sent, str) else sent
        expected[name] = [mode, (content or b"").hex(), mtime]
    assert result["found"] == expected
    [again], notes = submit(capsys, *words)
    assert f"the service has the {count} entries of {root} (" in notes
    assert json.loads(log_of(live, again))["found"] == expected


def test_jobs_cannot_change_the_files_of_each_other(
    live: RunningService, capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    script = "import os; print(open('train.py').read()); open('train.py', 'w').write('mine')"
    for _ in range(2):
        [job], _ = submit(capsys, "--upload", "--wait", "--", sys.executable, "-c", script)
        assert log_of(live, job).strip() == "print(1)"
    assert (root / "train.py").read_text() == "print(1)\n"


def test_a_remote_service_gets_the_files_without_an_option(
    live: RunningService,
    capsys: pytest.CaptureFixture[str],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = f"exec {sys.executable} train.py"
    [job], notes = submit(capsys, "--wait", "--", "sh", "-c", "pwd")
    assert log_of(live, job).strip() == str(root)
    assert "sent" not in notes
    monkeypatch.setattr(plain_job, "host_identity", lambda: "another machine")
    [job], notes = submit(capsys, "--wait", "--", "sh", "-c", program)
    assert "upload" in live.client.get(f"/v1/jobs/id:{job['id']}").json()["spec"]["run"]
    assert log_of(live, job).strip() == "1"
    (root / "job.sh").write_text(f"#!/bin/sh\n{program}\n")
    [job], _ = submit(capsys, "--wait", "job.sh")
    assert log_of(live, job).strip() == "1"
    [job], notes = submit(capsys, "--wait", "--workdir", "/usr", "--", "pwd")
    assert (log_of(live, job).strip(), notes.count("sent")) == ("/usr", 0)
    [job], notes = submit(capsys, "--no-upload", "--wait", "--", "sh", "-c", "ls; pwd")
    assert log_of(live, job).strip().endswith("/work")  # an empty directory of its own
    monkeypatch.setenv("HOME", str(root))
    _, notes = submit(capsys, "--", "true", status=2)
    assert f"--upload: '{root}' would be sent to {live.address}; change to the directory" in notes
    service = live.service
    uploads, service.upload_store = service.upload_store, None
    try:
        _, notes = submit(capsys, "--", "true", status=2)
    finally:
        service.upload_store = uploads
    assert "this service runs jobs on other machines, and accepts no files" in notes


def test_a_dry_run_sends_nothing(
    live: RunningService, capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    (root / "new").write_text("never sent")
    before = stored_files(live)
    [quote], notes = submit(capsys, "--upload", "--dry-run", "--", "true")
    assert quote["answer"] in {"admitted", "queued"}
    count = len(select_files(root, max_bytes=1 << 30).files)
    assert f"would send {count} entries of {root} (" in notes
    assert stored_files(live) == before


def test_files_above_the_limit_are_named_before_anything_is_sent(
    live: RunningService, capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    uploads = live.service.upload_store
    (root / "model.bin").write_bytes(bytes(1 << 20))
    limit, uploads.max_bytes = uploads.max_bytes, 1 << 20
    try:
        _, notes = submit(capsys, "--upload", "--", "true", status=2)
        content, _ = archive(root)
        answer = put(live.client, content)
        chunked = put(live.client, iter([content[:700_000], content[700_000:]]), "0" * 64)
    finally:
        uploads.max_bytes = limit
    assert f"{root}: its files take 1.0 MiB, above the service's limit of 1.0 MiB; the" in notes
    assert "'model.bin' 1.0 MiB" in notes
    for refused in (answer, chunked):
        assert (refused.status_code, refused.json()["code"]) == (413, "too-large")
        assert "--max-upload-size" in refused.json()["errors"][0]["hint"]
    assert uploads._arriving.total() == 0


def test_a_job_refers_to_uploads_of_its_own_tenant_only(live: RunningService) -> None:
    content = member("secret", content=b"of vision") + END
    digest = hashlib.sha256(content).hexdigest()
    with live.as_(live.token("vision")) as vision, live.as_(live.token("speech")) as speech:
        first = put(vision, content)
        assert (first.status_code, first.json()["tenant"]) == (201, "vision")
        assert first.json()["bytes"] == len(content)
        job = {
            "name": "reads",
            "steps": 1,
            "minibatch_time": "1s",
            "worker": {"cpu": 1},
            "run": {"command": ["cat", "secret"], "upload": digest},
        }
        for client in (speech, live.client):
            response = client.post("/v1/jobs", json=job)
            assert response.status_code == 422, response.text
            [error] = response.json()["errors"]
            assert error["location"] == "job.run.upload"
            assert error["message"].startswith(f"unknown upload '{digest[:60]}")
            assert client.get(f"/v1/uploads/{digest}").status_code == 404
        assert speech.get(f"/v1/uploads/{digest}?tenant=vision").status_code == 403
        assert put(speech, content, params={"tenant": "vision"}).status_code == 403
        # An equal upload of another tenant is treated as new: no response shows that it exists.
        second = put(speech, content)
        assert second.status_code == 201
        assert {**second.json(), "used": 0, "tenant": 0} == {**first.json(), "used": 0, "tenant": 0}
        assert put(speech, content).status_code == 200
        operated = live.client.get(f"/v1/uploads/{digest}?tenant=vision")
        assert operated.json()["tenant"] == "vision"
        assert live.client.post("/v1/jobs", json={**job, "tenant": "vision"}).status_code == 200
        wait_until(lambda: vision.get("/v1/jobs/reads").json()["state"] == "finished")
        assert vision.get("/v1/jobs/reads/logs").json()["text"] == "of vision"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_never_stored(live: RunningService, name: str) -> None:
    content, message = HOSTILE[name]
    before = stored_files(live)
    answer = put(live.client, content)
    assert answer.status_code == 422, answer.text
    assert message.split("'")[0] in answer.text.replace('\\"', '"')
    assert stored_files(live) == before


def test_invalid_requests_are_refused(live: RunningService) -> None:
    content = member("a") + END
    digest = hashlib.sha256(content).hexdigest()
    other = put(live.client, content, "0" * 64)
    assert (other.status_code, other.json()["errors"][0]["location"]) == (422, "body")
    assert f"got {digest}" in other.json()["detail"]
    url = f"/v1/uploads/{digest}"
    kind = live.client.put(url, content=content, headers={"Content-Type": "application/gzip"})
    assert kind.status_code == 415
    assert put(live.client, content, "0" * 63).status_code == 422
    assert put(live.client, content, digest.upper().replace("0", "A")).status_code == 422
    assert live.client.get(url).status_code == 404
    run = {"command": ["true"], "workdir": "/tmp", "upload": digest}
    job = {"name": "both", "steps": 1, "minibatch_time": "1s", "worker": {"cpu": 1}, "run": run}
    assert "workdir has no effect with upload" in live.client.post("/v1/jobs", json=job).text
    job["run"] = {"command": ["true"], "upload": "../../x"}
    assert "'../../x' is not a SHA-256 digest" in live.client.post("/v1/jobs", json=job).text


def test_aborted_upload_leaves_nothing(live: RunningService) -> None:
    content = member("a", content=bytes(3 << 20)) + END
    digest = hashlib.sha256(content).hexdigest()
    uploads, before = live.service.upload_store, stored_files(live)
    seen: list[int] = []

    def pieces() -> Iterator[bytes]:
        yield content[: 2 << 20]
        wait_until(lambda: len(stored_files(live)) > len(before))
        seen.append(uploads._arriving.total())
        raise RuntimeError("the client dies")

    with pytest.raises(RuntimeError, match="the client dies"):
        live.client.put(
            f"/v1/uploads/{digest}",
            content=pieces(),
            headers={**TAR, "Content-Length": str(len(content))},
        )
    assert seen == [len(content)]
    wait_until(lambda: stored_files(live) == before)
    assert uploads._arriving.total() == 0
    assert put(live.client, content).status_code == 201


def test_client_disconnect_is_no_server_error(
    live: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    before = stored_files(live)
    with begun_upload(live):
        wait_until(lambda: len(stored_files(live)) > len(before))
    wait_until(lambda: stored_files(live) == before)
    assert live.client.get("/v1/service").status_code == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_revoking_a_token_aborts_its_uploads(
    live: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.service.api.uploads.TOKEN_CHECK_SECONDS", 0.0)
    before = stored_files(live)
    answer = live.client.post("/v1/tokens", json={"tenant": "vision"}).json()
    with begun_upload(live, answer["token"]) as raw:
        wait_until(lambda: len(stored_files(live)) > len(before))
        assert live.client.delete(f"/v1/tokens/{answer['id']}").status_code < 300
        raw.sendall(b"more")
        assert raw.recv(65_536).decode().startswith("HTTP/1.1 401 ")
    wait_until(lambda: stored_files(live) == before)
    # The end of the body comes after the last check in time.
    monkeypatch.setattr("shadowprice.service.api.uploads.TOKEN_CHECK_SECONDS", 1e9)
    answer = live.client.post("/v1/tokens", json={"tenant": "vision"}).json()
    with begun_upload(live, answer["token"]) as raw:
        wait_until(lambda: len(stored_files(live)) > len(before))
        assert live.client.delete(f"/v1/tokens/{answer['id']}").status_code < 300
        raw.sendall(bytes(5000 - len(b"beginning")))
        assert raw.recv(65_536).decode().startswith("HTTP/1.1 401 ")
    wait_until(lambda: stored_files(live) == before)


def test_slow_upload_times_out(live: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowprice.service.api.uploads.MAX_SECONDS", 0.5)
    before = stored_files(live)
    with begun_upload(live) as raw:
        raw.settimeout(0.05)
        answer = b""
        while not answer:
            raw.sendall(b"x")
            with suppress(TimeoutError):
                answer = raw.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"took more than 0.5 s" in answer
    wait_until(lambda: stored_files(live) == before)


def test_uploads_of_a_tenant_are_limited(live: RunningService) -> None:
    """The oldest ones without an open job make room, but no others."""
    uploads, service = live.service.upload_store, live.service
    contents = [member("a", content=bytes([n]) * 100_000) + END for n in range(4)]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    size = len(contents[0])
    limit, uploads._max_tenant_bytes = uploads._max_tenant_bytes, 2 * size
    try:
        with live.as_(live.token("limited")) as client:
            for content in contents[:2]:
                assert put(client, content).status_code == 201
            refused = put(client, contents[2])
            assert (refused.status_code, refused.json()["code"]) == (429, "tenant-limit")
            assert refused.headers["retry-after"]
            assert "--max-uploads" in refused.json()["errors"][0]["hint"]
            assert put(live.client, contents[2]).status_code == 201  # an operator's
            run = {"command": ["sleep", "600"], "upload": digests[0]}
            job = {"name": "open", "steps": 900, "minibatch_time": "1s", "worker": {"cpu": 1}}
            assert client.post("/v1/jobs", json={**job, "run": run}).status_code == 200
            old = service.writer.clock.now() - 2 * MIN_KEEP_SECONDS * SECOND
            for digest in digests[:2]:
                uploads.use("limited", digest, old)
            assert put(client, contents[2]).status_code == 201
            kept = [client.get(f"/v1/uploads/{digest}").status_code for digest in digests]
            assert kept == [200, 404, 200, 404]
            assert client.delete("/v1/jobs/open").status_code == 200
    finally:
        uploads._max_tenant_bytes = limit


def test_uploads_expire_after_their_last_use(live: RunningService) -> None:
    uploads, clock = live.service.upload_store, live.service.require_writer().clock
    contents = [member("b", content=bytes([n]) * 100) + END for n in range(2)]
    for content in contents:
        assert put(live.client, content).status_code == 201
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    job = {"name": "uses", "steps": 900, "minibatch_time": "1s", "worker": {"cpu": 1}}
    run = {"command": ["sleep", "600"], "upload": digests[0]}
    assert live.client.post("/v1/jobs", json={**job, "run": run}).status_code == 200
    now = clock.now()
    for digest in digests:
        uploads.use(None, digest, now - (KEEP_SECONDS + 1) * SECOND)
    uploads.purge_unused(now)
    assert uploads.find(None, digests[0]).used == now
    assert uploads.find(None, digests[1]) is None
    assert live.client.delete("/v1/jobs/uses").status_code == 200
    repeated = live.client.post("/v1/jobs/uses/resubmit", json={"name": "uses-again"})
    assert repeated.status_code == 200, repeated.text
    assert live.client.delete("/v1/jobs/uses-again").status_code == 200
    uploads.use(None, digests[0], now - (KEEP_SECONDS + 1) * SECOND)
    uploads.purge_unused(now)
    refused = live.client.post("/v1/jobs/uses/resubmit", json={"name": "uses-once-more"})
    assert refused.status_code == 409
    assert "the files of job 'uses' were deleted; submit it from its" in refused.json()["detail"]


@pytest.mark.parametrize("missing", [False, True])
def test_job_with_deleted_files_fails_after_retries(
    live: RunningService, monkeypatch: pytest.MonkeyPatch, *, missing: bool
) -> None:
    monkeypatch.setattr(reconciler, "INITIAL_BACKOFF_NS", 1_000_000)
    content = member("c", content=b"missing" if missing else b"lost") + END
    assert put(live.client, content).status_code == 201
    digest = hashlib.sha256(content).hexdigest()
    path = live.service.upload_store.find(None, digest).path
    job = {"name": f"damaged-{missing}", "steps": 1, "minibatch_time": "1s", "worker": {"cpu": 1}}
    run = {"command": ["true"], "upload": digest, "retries": 3}
    assert live.client.post("/v1/jobs", json={**job, "run": run}).status_code == 200
    if missing:
        path.unlink()
    else:
        path.write_bytes(b"x" * len(content))

    def state() -> str:
        return str(live.client.get(f"/v1/jobs/{job['name']}").json()["state"])

    wait_until(lambda: state() == "failed", state)
    reason = live.client.get(f"/v1/jobs/{job['name']}").json()["reason"]
    cause = "its files are missing; submit it again" if missing else "its files can't be unpacked"
    attempts = report_operations.MAX_LASTING_REFUSALS
    assert reason["message"].startswith(f"it could not be started in {attempts} attempts: {cause}")
    lines = live.client.get(f"/v1/jobs/{job['name']}/explain").json()["lines"]
    assert sum(f"could not be started: {cause}" in line for line in lines) >= 1
    # Other tests compare the stored files with those that the service counts. It no longer counts
    # a missing file that its retention has noticed.
    if missing:
        assert put(live.client, content).status_code == 201
    else:
        path.write_bytes(content)


def test_job_continues_in_its_copy_after_the_upload_is_deleted(live: RunningService) -> None:
    script = b"import os\nos.rename('a', 'b') if os.path.exists('a') else os._exit(0)\n"
    script += b"open('wait').read()\nos._exit(3)\n"
    content = member("a") + member("train.py", content=script) + END
    assert put(live.client, content).status_code == 201
    digest = hashlib.sha256(content).hexdigest()
    run = {"command": ["sh", "-c", "mkfifo wait; exec python3 train.py"], "upload": digest}
    job = {"name": "goes-on", "steps": 1, "minibatch_time": "1s", "worker": {"cpu": 1}}
    record = {**job, "run": {**run, "retries": 1}}
    assert live.client.post("/v1/jobs", json=record).status_code == 200
    jobs = live.service.store.folder / "executor" / "jobs"
    wait_until(lambda: any(path.parent.joinpath("b").exists() for path in jobs.glob("*/work/wait")))
    [pipe] = jobs.glob("*/work/wait")
    live.service.upload_store.find(None, digest).path.unlink()
    assert live.client.get(f"/v1/uploads/{digest}").status_code == 404
    pipe.write_text("x")
    wait_until(
        lambda: live.client.get("/v1/jobs/goes-on").json()["state"] in {"finished", "failed"}
    )
    assert live.client.get("/v1/jobs/goes-on").json()["state"] == "finished"


def test_slow_unpacking_delays_only_its_own_job(live: RunningService, tmp_path: Path) -> None:
    def submit_job(name: str, command: str, upload: str | None = None, **more: Any) -> None:
        job = {"name": name, "steps": 1, "minibatch_time": "1s", "worker": {"cpu": 1}}
        run = {"command": ["sh", "-c", command], "upload": upload, **more}
        response = live.client.post("/v1/jobs", json={**job, "run": run})
        assert response.status_code == 200, response.text

    def state(name: str) -> str:
        return str(live.client.get(f"/v1/jobs/{name}").json()["state"])

    digests, uploads = [], live.service.upload_store
    for name in ("again", "cancelled", "slow"):
        content = member(f"file-{name}") + END
        assert put(live.client, content).status_code == 201
        digests.append(hashlib.sha256(content).hexdigest())
    go, generation = tmp_path / "go", "$SHADOWPRICE_GENERATION"
    wait = f"touch {tmp_path}/began; until [ -e {go} ]; do sleep 0.05; done"
    submit_job("again", f'[ "{generation}" = 2 ] || {{ {wait}; exit 3; }}', digests[0], retries=1)
    wait_until((tmp_path / "began").exists)
    pipes = []
    for name, digest in zip(("cancelled", "slow"), digests[1:], strict=True):
        path = uploads.find(None, digest).path
        path.rename(tmp_path / digest)
        os.mkfifo(path)  # whose reader waits for a writer
        os.link(path, tmp_path / name)
        pipes.append(tmp_path / name)
        submit_job(name, "true", digest)
    jobs = live.service.store.folder / "executor" / "jobs"
    try:
        submit_job("quick", "true")
        wait_until(lambda: state("quick") == "finished")
        go.touch()  # its files are unpacked, so its next generation needs no thread for them
        wait_until(lambda: state("again") == "finished")
        assert live.client.delete("/v1/jobs/cancelled").status_code == 200
        submit_job("next", "true")
        wait_until(lambda: state("next") == "finished")
        assert (state("cancelled"), state("slow")) == ("cancelled", "admitted")
    finally:
        for digest, pipe in zip(digests[1:], pipes, strict=True):
            (tmp_path / digest).rename(uploads.find(None, digest).path)
            with pipe.open("w"):
                pass
    wait_until(lambda: state("slow") == "finished")
    events = live.client.get("/v1/jobs/slow/explain").json()["events"]
    assert [event["data"]["generation"] for event in events if event["kind"] == "start-failed"] == [
        1
    ]
    names = [path.read_text() for path in jobs.glob("*/name")]
    assert "slow" in names
    assert "cancelled" not in names  # it was never ordered


def test_job_cancelled_while_starting_keeps_its_output(
    live: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are deleted before its next generation would have been started."""
    content = member("kept") + END
    assert put(live.client, content).status_code == 201
    digest = hashlib.sha256(content).hexdigest()
    writer, execution = live.service.require_writer(), live.service.execution
    assert execution is not None
    executor = execution.executor
    assert isinstance(executor, UnpacksFiles)
    read_times, blocked, go_on = writer.fetch_command_times, threading.Event(), threading.Event()

    async def slow(generations: Any) -> Any:
        times = await read_times(generations)
        if any(generation == 2 for _, generation in generations):
            blocked.set()
            await asyncio.to_thread(go_on.wait, WAIT_LIMIT_SECONDS)
        return times

    monkeypatch.setattr(writer, "fetch_command_times", slow)
    command = f"pwd >{tmp_path}/where; echo 1 >result; exit 3"
    run = {"command": ["sh", "-c", command], "upload": digest, "retries": 1}
    job = {"name": "between", "steps": 1, "minibatch_time": "1s", "worker": {"cpu": 1}}
    assert live.client.post("/v1/jobs", json={**job, "run": run}).status_code == 200
    try:
        assert blocked.wait(WAIT_LIMIT_SECONDS)
        work = Path((tmp_path / "where").read_text().strip())
        assert {path.name for path in work.iterdir()} == {"kept", "result"}
        assert "between" in executor.unpacked()
        assert live.client.delete("/v1/jobs/between").status_code == 200
        wait_until(lambda: "between" not in executor.unpacked())
        assert {path.name for path in work.iterdir()} == {"result"}
    finally:
        go_on.set()
    run = {"command": ["true"]}
    assert live.client.post("/v1/jobs", json={**job, "name": "next", "run": run}).status_code == 200
    wait_until(lambda: live.client.get("/v1/jobs/next").json()["state"] == "finished")
    assert {path.name for path in work.iterdir()} == {"result"}
    numbers = {path.name for path in work.with_name("generations").iterdir()}
    assert numbers == {"1"}
    events = live.client.get("/v1/jobs/between/explain").json()["events"]
    assert "start-failed" not in {event["kind"] for event in events}


def test_the_store_is_open_before_the_executor(tmp_path: Path) -> None:
    """While a new leader opens its executor, requests find uploads and take new ones."""
    options = ExecutorOptions(str(tmp_path / "data" / "executor"), settings={"cgroup": "off"})
    executor = create_executor("local", options)
    (tmp_path / "cluster.yaml").write_text(json.dumps(CLUSTER))
    settings = ServiceSettings(
        cluster=tmp_path / "cluster.yaml", data=str(tmp_path / "data"), policy=PolicyChoice("fifo")
    )
    service = Service(settings, None, executor)
    seen: list[bool] = []

    async def opening() -> None:
        assert service.execution is not None
        seen.append(service.uploads is service.execution._uploads)
        raise ExecutorError("is unreachable")

    executor.open = opening  # type: ignore[method-assign]

    async def run() -> None:
        (tmp_path / "data" / "uploads").write_text("no directory")
        with pytest.raises(InputError, match="uploads: cannot be used"):
            await service.start()
        assert (service.writer, service.driver, service.execution) == (None, None, None)
        with pytest.raises(ProblemError) as caught:
            _ = service.uploads
        assert caught.value.code == "standby"
        (tmp_path / "data" / "uploads").unlink()
        service.store.close()
        assert service.store.open()
        with pytest.raises(ExecutorError):
            await service.start()

    try:
        assert service.open()
        asyncio.run(run())
    finally:
        service.store.close()
    assert seen == [True]


def test_both_clients_send_archives(live: RunningService, root: Path) -> None:
    (root / "large").write_bytes(os.urandom(700_000))
    sent: list[int] = []
    with temporary_archive(select_files(root, max_bytes=1 << 30)) as found, Client() as client:
        upload = client.upload(found, sent=sent.append)
        assert (upload.digest, sent[-1]) == (found.digest, found.size)
        sent.clear()
        assert client.upload(found, sent=sent.append).digest == found.digest
        assert sent == []

        async def send() -> str:
            async with AsyncClient() as asynchronous:
                return (await asynchronous.upload(found, tenant="vision")).digest

        assert asyncio.run(send()) == found.digest
    upload = live.client.get(f"/v1/uploads/{found.digest}?tenant=vision").json()
    assert upload["bytes"] == found.size


def test_concurrent_uploads_succeed(live: RunningService) -> None:
    content = member("d", content=os.urandom(2 << 20)) + END
    statuses: list[int] = []

    def send() -> None:
        with live.as_(live.service.token_file.read_text().strip()) as client:
            statuses.append(put(client, content).status_code)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_LIMIT_SECONDS)
    assert set(statuses) <= {200, 201}
    assert 201 in statuses
    uploads = live.service.upload_store
    assert uploads._arriving.total() == 0
    sizes = sum(max(path.stat().st_size, MIN_ACCOUNTED_BYTES) for path in stored_files(live))
    assert uploads._sizes.total() == sizes


def test_stalled_body_leaves_nothing(live: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowprice.service.api.uploads.IDLE_TIMEOUT_SECONDS", 0.2)
    before = stored_files(live)
    with begun_upload(live) as raw:
        data = raw.recv(65_536).decode()
    assert data.startswith("HTTP/1.1 400 ")
    wait_until(lambda: stored_files(live) == before)
    assert live.service.upload_store._arriving.total() == 0
