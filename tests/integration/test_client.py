"""The client and its commands against a running service."""

import asyncio
import json
import sqlite3
import threading
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from shadowprice.cli.commands.login import _label
from shadowprice.cli.main import main
from shadowprice.client import (
    AsyncClient,
    Client,
    Endpoint,
    ServiceError,
    ServiceUnreachableError,
    calls,
    clients,
)
from shadowprice.client.endpoints import SavedEndpoints
from shadowprice.core.errors import InputError
from tests.support.completion import offered
from tests.support.services import RunningService, job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    with run_service(tmp_path_factory.mktemp("client"), policy="oasis") as found:
        yield found


@pytest.fixture
def address(live: RunningService) -> Endpoint:
    return Endpoint(live.address, live.service.token_file.read_text().strip())


@pytest.fixture
def client(address: Endpoint):
    with Client(address) as found:
        yield found


@pytest.fixture(autouse=True)
def _environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SHADOWPRICE_TOKEN", raising=False)
    result = request.getfixturevalue("address")
    monkeypatch.setenv("SHADOWPRICE_SERVER", result.url)
    monkeypatch.setenv("SHADOWPRICE_TOKEN", result.token)


def _file(folder: Path, *jobs: dict) -> str:
    path = folder / "jobs.yaml"
    path.write_text(yaml.safe_dump({"jobs": list(jobs)}))
    return str(path)


def _json(capsys: pytest.CaptureFixture[str]):
    return json.loads(capsys.readouterr().out)


def test_python_client_makes_every_call(client: Client) -> None:
    taken = client.submit(job("py-1"))
    assert taken.state == "admitted"
    assert taken.promise is not None
    assert taken.promise.utcoffset() is not None
    batch = client.submit_many([job("py-2"), job("py-1", chunks=5)], wait=10)
    assert [job.name for job in batch.jobs] == ["py-2"]
    [problem] = batch.problems
    assert (problem.index, problem.name, problem.error.code) == (1, "py-1", "name-conflict")
    assert client.job("py-1").spec["name"] == "py-1"
    assert {"py-1", "py-2"} <= {job.name for job in client.jobs("admitted", "running", "refused")}
    assert client.quote(job("py-3")).admitted
    with pytest.raises(ServiceError) as caught:
        client.job("py-3")
    assert caught.value.code == "not-found"
    assert client.revise("py-2", minibatches=20).required == 80.0
    assert client.cancel("py-2").state == "cancelled"
    assert not client.wait("py-2").open
    history = client.explain("py-2")
    assert history.events[0].kind == "submitted"
    assert len(history.events) == len(history.lines)
    assert client.generations("py-2") == ()
    assert client.progress("py-2") == ()
    assert len(client.prices(5)) == 5
    added = client.add_servers({"name": "x", "count": 2, "capacity": {"gpu": 1}})
    names = [entry.name for entry in added]
    assert names == ["x-0", "x-1"]
    assert client.drain("x-0").state == "drained"
    assert client.cordon("x-0").state == "cordoned"
    assert client.uncordon("x-0").state == "up"
    assert client.change_server("x-0", capacity={"gpu": 3}).capacity["gpu"] == "3"
    for name in names:
        client.remove_server(name)
    assert not {server.name for server in client.servers()} & set(names)
    assert client.put_tenant("art", {"gpu": 2}).share == {"gpu": "2"}
    created = client.create_token("art", expires="1h", note="test")
    assert created.token
    with Client(Endpoint(client.address.url, created.token)) as theirs:
        assert theirs.service().caller.record == {"role": "tenant", "tenant": "art"}
        with pytest.raises(ServiceError):
            theirs.drain("g-0")
    client.revoke_token(created.id)
    assert next(token for token in client.tokens() if token.id == created.id).revoked is not None
    with (
        Client(Endpoint(client.address.url, created.token)) as theirs,
        pytest.raises(ServiceError) as caught,
    ):
        theirs.jobs().__next__()
    assert caught.value.status == 401
    client.remove_tenant("art")
    assert "art" not in {tenant.name for tenant in client.tenants()}
    assert "cancelled" in {decision.kind for decision in client.decisions(job="py-2")} | {
        "cancelled"
    }
    assert next(iter(client.decisions())).id


def test_client_reads_jobs_page_by_page(client: Client) -> None:
    client.submit_many([job(f"paged-{index}") for index in range(7)], wait=10)
    page = client.page_of_jobs(limit=3)
    assert len(page.entries) == 3
    following = client.page_of_jobs(limit=3, cursor=page.next)
    assert not {entry.name for entry in page.entries} & {entry.name for entry in following.entries}
    results = [job.name for job in client.jobs(search="AGED-")]
    assert results == [f"paged-{index}" for index in reversed(range(7))]
    assert [entry.name for entry in client.page_of_jobs(search="ged-3").entries] == ["paged-3"]


def test_async_client_makes_every_call(address: Endpoint) -> None:
    async def history() -> list[str]:
        async with AsyncClient(address) as found:
            seen = []

            async def follow() -> None:
                async for event in found.events():
                    if event.job == "async-1":
                        seen.append(event.kind)
                    if event.kind == "cancelled":
                        return

            following = asyncio.create_task(follow())
            await asyncio.sleep(0.5)
            taken = await found.submit(job("async-1"))
            assert taken.state == "admitted"
            assert "async-1" in [job.name async for job in found.jobs("admitted")]
            await found.cancel("async-1")
            assert (await found.wait("async-1")).state == "cancelled"
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                await following
            return seen

    assert asyncio.run(history()) == ["submitted", "admitted", "cancelled"]


def test_client_resumes_the_event_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is stopped and started again on its port while a client follows."""
    monkeypatch.setattr("shadowprice.client.clients.reconnect_delays", lambda: repeat(0.2))
    with run_service(tmp_path) as first:
        token = first.service.token_file.read_text().strip()
        follower = Client(Endpoint(first.address, token))
        first.client.post("/v1/jobs", json=job("one"))
        events = follower.events(0)
        seen = [next(events).job for _ in range(2)]
        port = first.service.settings.port or int(first.address.rpartition(":")[2])
    results: list[str | None] = []

    def rest() -> None:
        for event in events:
            if event.id is not None and event.kind == "submitted":
                results.append(event.job)
                return

    thread = threading.Thread(target=rest, daemon=True)
    thread.start()
    with run_service(tmp_path, port=port) as second:
        second.client.post("/v1/jobs", json=job("two"))
        thread.join(WAIT_LIMIT_SECONDS)
    assert seen == ["one", "one"]
    assert results == ["two"]
    follower.close()


def test_submit_quote_and_status_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path, job("cli-1"), job("cli-2"))
    assert main(["quote", file, "--only", "cli-1", "-o", "json"]) == 0
    assert _json(capsys)[0]["admitted"]
    assert main(["submit", file, "-o", "json"]) == 0
    assert [entry["state"] for entry in _json(capsys)] == ["admitted", "admitted"]
    assert main(["submit", file]) == 0  # again is the same
    assert "cli-2" in capsys.readouterr().out
    assert main(["queue", "-o", "json"]) == 0
    assert {"cli-1", "cli-2"} <= {entry["name"] for entry in _json(capsys)}
    assert main(["queue", "--limit", "1"]) == 0
    assert "and more" in capsys.readouterr().err
    assert main(["queue", "-o", "csv"]) == 0
    assert capsys.readouterr().out.startswith("name,tenant,state,")
    assert main(["status", "cli-1"]) == 0
    assert "promise" in capsys.readouterr().out
    assert main(["explain", "cli-1"]) == 0
    assert "admitted, promised by " in capsys.readouterr().out
    assert main(["revise", "cli-1", "--set", "utility.value=99", "-o", "json"]) == 0
    capsys.readouterr()
    for key in ("name", "self", "dry_run"):  # also names of the client's own parameters
        assert main(["revise", "cli-1", "--set", f"{key}=1"]) == 2
        assert f"{key}: " in capsys.readouterr().err
    with Client() as client, pytest.raises(ServiceError, match="name: can't be changed"):
        client.revise("cli-1", name="other")
    assert main(["status", "cli-1", "-o", "json"]) == 0
    assert _json(capsys)["spec"]["utility"]["value"] == 99
    assert main(["cancel", "cli-1", "cli-2", "-o", "json"]) == 0
    assert {entry["state"] for entry in _json(capsys)} == {"cancelled"}
    assert main(["submit", file, "--only", "cli-2", "-o", "json"]) == 0  # it runs again
    assert _json(capsys)[0]["state"] == "admitted"
    assert main(["cancel", "cli-2"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("command", ["submit", "resubmit"])
def test_a_submission_whose_response_is_lost_is_not_done_twice(
    command: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service takes the job, and the connection breaks before its response arrives."""
    words = ["submit", _file(tmp_path, job(f"lost-response-{command}"))]
    if command == "resubmit":
        assert main(words) == 0
        words = ["resubmit", client.cancel("lost-response-resubmit").name]
    before = len(list(client.jobs(search=f"lost-response-{command}")))
    parse, lost = clients.parse_response, []

    def lose(response: httpx.Response, call: calls.ApiCall[Any]) -> Any:
        if call.is_submission and not lost:
            lost.append(response.status_code)
            raise httpx.ReadError("Connection reset by peer")
        return parse(response, call)

    monkeypatch.setattr(clients, "parse_response", lose)
    assert main(words) == 0
    assert lost == [200]
    jobs = list(client.jobs(search=f"lost-response-{command}"))
    assert len(jobs) == before + 1
    client.cancel(f"id:{jobs[0].id}")


def test_problems_of_equal_names_of_two_tenants_are_all_printed(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tenant in ("both-a", "both-b"):
        client.submit(job("equal", tenant=tenant))
    path = _file(tmp_path, *(job("equal", tenant=t, chunks=5) for t in ("both-a", "both-b")))
    assert main(["submit", path, "-o", "json"]) == 2
    output = capsys.readouterr()
    records = json.loads(output.out)
    assert [(entry["name"], entry["tenant"]) for entry in records] == [
        ("equal", "both-a"),
        ("equal", "both-b"),
    ]
    lines = output.err.splitlines()
    assert [line.partition(": job 'equal' was submitted")[0] for line in lines] == [
        f"error: {path}: jobs[{index}]" for index in range(2)
    ]
    for tenant in ("both-a", "both-b"):
        client.cancel(f"{tenant}/equal")


def test_an_error_in_a_later_part_names_what_was_submitted(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(calls, "MAX_BATCH_JOBS", 2)
    jobs = [job(f"part-{index}") for index in range(4)]
    jobs[3]["chunks"] = -1
    path = _file(tmp_path, *jobs)
    assert main(["submit", path, "--wait", "-o", "json"]) == 2
    output = capsys.readouterr()
    assert [entry["name"] for entry in json.loads(output.out)] == ["part-0", "part-1"]
    *faults, stop = output.err.splitlines()
    assert faults
    assert all(line.startswith(f"error: {path}: jobs[3].chunks") for line in faults)
    assert stop == f"error: stopped at {path}: jobs[2]: the first 2 of 4 jobs were submitted"
    for name in ("part-0", "part-1"):
        client.cancel(name)


def test_server_price_and_tenant_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes"]) == 0
    assert "g-[0-3]" in capsys.readouterr().out
    assert main(["drain", "g-3", "-o", "json"]) == 0
    assert _json(capsys)[0]["state"] == "drained"
    assert main(["nodes", "--each"]) == 0
    assert "drained" in capsys.readouterr().out
    assert main(["uncordon", "g-3"]) == 0
    capsys.readouterr()
    assert main(["cordon", "g-3", "-o", "json"]) == 0
    assert _json(capsys)[0]["state"] == "cordoned"
    assert main(["uncordon", "g-3"]) == 0
    assert main(["prices", "--slots", "3"]) == 0
    assert "g gpu" in capsys.readouterr().out
    assert main(["top"]) == 0
    assert "policy oasis" in capsys.readouterr().out
    assert main(["top", "-o", "json"]) == 0
    assert _json(capsys)["service"]["policy"] == "oasis"
    assert main(["events", "--after", "0", "--count", "3", "-o", "json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["tokens", "--tenant", "vision", "--expires", "1h"]) == 0
    assert capsys.readouterr().out.startswith("sp_")
    assert main(["tokens", "-o", "json"]) == 0
    [number] = [token["id"] for token in _json(capsys) if token["tenant"] == "vision"]
    assert main(["tokens", "--revoke", str(number), "-o", "json"]) == 0
    assert _json(capsys)["revoked"] is not None
    assert main(["tokens"]) == 0
    assert "vision" in capsys.readouterr().out


def test_servers_drained_before_an_error_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "g-2", "h-9", "-o", "json"]) == 2
    captured = capsys.readouterr()
    assert [(server["name"], server["state"]) for server in json.loads(captured.out)] == [
        ("g-2", "drained")
    ]
    assert captured.err == "error: unknown server 'h-9'; shadowprice nodes lists them\n"
    assert main(["uncordon", "g-2"]) == 0


def test_a_dumb_terminal_gets_the_screen_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # stdout counts as a terminal
    assert main(["top"]) == 0
    assert "policy oasis" in capsys.readouterr().out


def test_names_of_the_chosen_service_are_completed(
    address: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered("shadowprice drain g-", tmp_path) == ["g-0", "g-1", "g-2", "g-3"]
    monkeypatch.delenv("SHADOWPRICE_SERVER")
    monkeypatch.delenv("SHADOWPRICE_TOKEN")
    closed = Endpoint("http://127.0.0.1:1", "sp_token")
    SavedEndpoints({"closed": closed, "lab": address}, default="closed").save()
    assert offered("shadowprice drain g-", tmp_path) == []
    assert len(offered("shadowprice drain -s lab g-", tmp_path)) == 4


def test_errors_name_their_location_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = job("w-2") | {"utilty": 1}
    assert main(["submit", _file(tmp_path, job("w-1"), wrong)]) == 2
    captured = capsys.readouterr().err
    assert "jobs.yaml: jobs[1].utilty: unknown key; did you mean 'utility'?" in captured
    assert main(["submit", _file(tmp_path, wrong)]) == 2
    assert "jobs.yaml: jobs[0].utilty: unknown key" in capsys.readouterr().err
    assert main(["submit", _file(tmp_path, job("w-1"))]) == 0
    capsys.readouterr()
    assert main(["submit", _file(tmp_path, job("w-1", chunks=9), job("w-3"))]) == 2
    captured = capsys.readouterr()
    assert "w-3" in captured.out
    assert "jobs[0]" in captured.err
    assert "submitted with other content" in captured.err


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("run: {command: [a], env: {V: .nan}}", "run.env.V: expected a finite number, got nan"),
        ("utility: {kind: constant, value: .inf}", "utility.value: expected a finite number"),
        ("labels: {1.10: x}", "labels: expected a key of text, got '1.1'; quote it if it is text"),
        ("labels: {~: x}", "labels: expected a key of text, got 'null'; quote it if it is text"),
        ('run: {command: [a], env: {V: "\\0"}}', "run.env.V: contains a null character"),
        ('run: {command: ["a\\0"]}', "run.command[0]: contains a null character"),
    ],
)
def test_submit_locates_what_json_cannot_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, problem: str
) -> None:
    key = part.partition(":")[0]
    wrong = {name: value for name, value in job("u-2").items() if name != key}
    text = f"jobs:\n  - {json.dumps(wrong)[:-1]}, {part}}}\n"
    (tmp_path / "one.yaml").write_text(text)
    (tmp_path / "two.yaml").write_text(text + f"  - {json.dumps(job('u-3'))}\n")
    for name in ("one.yaml", "two.yaml"):
        for command in ("submit", "quote"):
            assert main([command, str(tmp_path / name)]) == 2
            assert f"{name}: jobs[0].{problem}" in capsys.readouterr().err
    with Client() as client, pytest.raises(InputError, match=r"labels: expected a key of text"):
        client.submit(job("u-4") | {"labels": {None: "x"}})


def test_quote_reports_the_problems_of_all_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [job("q-1", arrival="1h"), job("q-2"), job("q-3", stepz=1)]
    assert main(["quote", _file(tmp_path, *wrong)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "jobs[0].arrival: only valid in simulations" in captured.err
    assert "jobs[2].stepz: unknown key; did you mean 'steps'?" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "nope"], "unknown job 'nope'; shadowprice queue lists open jobs"),
        (
            ["queue", "--state", "runing"],
            "--state: unknown state 'runing'; one of: all, waiting, pending, admitted, ",
        ),
        (["queue", "--state", ""], "--state: unknown state ''; one of: "),
        (["queue", "--state", " "], "--state: unknown state ''; one of: "),
        (["queue", "--state", ","], "--state: unknown state ''; one of: "),
        (["cancel", "--state", "all"], "'all' is not a state of open jobs; one of: waiting, "),
        (
            ["queue", "-s", "nowhere"],
            "--server: unknown server 'nowhere'; write its address, or save",
        ),
        (["queue", "-s", "127.0.0.1:1"], "is the service running?"),
        (["events", "-s", "127.0.0.1:1"], "is the service running?"),
        (["revise", "x", "--set", "nonsense"], "unknown job 'x'"),
        (["drain", "g-9"], "unknown server 'g-9'"),
        (["tokens", "--operator", "--tenant", "a"], "--operator: not valid with --tenant"),
        (["login", "ftp://x"], "is not a valid address of a service"),
        (["login", "x", "--remove"], "unknown server"),
        (["submit", "absent.yaml"], "absent.yaml"),
    ],
)
def test_errors_are_one_line(words, message, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in {1, 2}
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_login_stores_only_a_valid_token(
    address: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SHADOWPRICE_SERVER")
    monkeypatch.delenv("SHADOWPRICE_TOKEN")
    token = tmp_path / "token"
    token.write_text("sp_wrong\n")
    token.chmod(0o640)
    assert main(["login", address.url, "--token-file", str(token)]) == 2
    assert capsys.readouterr().err.strip().endswith(f"run: chmod 600 {token}")
    token.chmod(0o600)
    assert main(["login", address.url, "--token-file", str(token)]) in {1, 2}
    assert SavedEndpoints.load().endpoints == {}
    token.write_text(f"{address.token}\n")
    assert main(["login", address.url, "--name", "lab", "--token-file", str(token)]) == 0
    assert SavedEndpoints.load().endpoints == {"lab": address}
    assert main(["queue"]) == 0
    assert main(["queue", "-s", "lab"]) == 0
    assert main(["login", "-o", "json"]) == 0
    capsys.readouterr()
    assert main(["login", "lab", "--remove"]) == 0
    assert SavedEndpoints.load().endpoints == {}
    assert address.token not in capsys.readouterr().out


def test_services_of_equal_hosts_are_saved_under_different_names(
    address: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHADOWPRICE_SERVER")
    monkeypatch.delenv("SHADOWPRICE_TOKEN")
    other = Endpoint("http://127.0.0.1:1", "sp_other")
    SavedEndpoints({"local": other}, default="local").save()
    token = tmp_path / "token"
    token.write_text(f"{address.token}\n")
    token.chmod(0o600)
    for _ in range(2):  # again is the same server
        assert main(["login", address.url, "--token-file", str(token)]) == 0
        assert SavedEndpoints.load().endpoints == {"local": other, "local-2": address}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8642", "local"),
        ("http://localhost:8642", "local"),
        ("http://[::1]:8642", "local"),
        ("https://scheduler.lab", "scheduler"),
        ("http://10.0.3.7:8642", "10-0-3-7"),
        ("http://[fe80::12]:8642", "fe80-12"),
    ],
)
def test_a_saved_service_is_named_after_its_host(url: str, name: str) -> None:
    assert _label(url, {}) == name


def test_unreachable_service_is_an_error_without_traceback() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(ServiceUnreachableError):
        client.jobs().__next__()


def test_long_job_history_is_abridged_and_readable_by_page(
    live: RunningService, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit(job("long-history"))
    began = [event.kind for event in client.explain("long-history").events]
    assert began[:2] == ["submitted", "admitted"]
    assert client.explain("long-history").omitted is None
    database = sqlite3.connect(Path(live.service.settings.data) / "shadowprice.db")
    columns = "at, kind, job, tenant, decision, data"
    with database:
        for at in range(2_500):
            database.execute(
                f"INSERT INTO events (id, {columns}) SELECT ?, at, 'revised', job, tenant, 0, ? "
                "FROM events WHERE job = 'long-history' AND kind = 'submitted'",
                (10_000_000 + at, json.dumps({"changes": {"priority": at}})),
            )
    database.close()
    count = len(began) + 2_500

    history = client.explain("long-history")
    assert len(history.events) == len(history.lines) == 1_000
    assert [event.kind for event in history.events][: len(began)] == began
    assert history.events[-1].data == {"changes": {"priority": 2_499}}
    assert history.omitted is not None
    at = [event.id for event in history.events].index(history.omitted.after)
    assert at == 9
    assert history.omitted.events == count - 1_000
    skipped = 10_000_000 + 2_499 - 990  # the last omitted one
    assert history.events[at + 1].id == skipped + 1

    every = list(client.job_events("long-history"))
    ids = [event.id for event in every]
    assert len(ids) == count
    assert ids == sorted(ids, reverse=True)
    assert history.lines[-1] == every[0].line

    async def event_ids() -> list[int | None]:
        async with AsyncClient(client.address) as other:
            return [event.id async for event in other.job_events("long-history")]

    assert asyncio.run(event_ids()) == ids

    assert main(["explain", "long-history"]) == 0
    captured = capsys.readouterr().out
    assert f"... {count - 1_000:,} more (--full shows them)" in captured
    assert (
        captured.index("admitted, promised") < captured.index(" more (--full") < len(captured) - 900
    )
    assert main(["explain", "long-history", "--full"]) == 0
    captured = capsys.readouterr().out
    assert "--full" not in captured
    assert captured.count("revised: priority") == 2_500
    assert main(["explain", "long-history", "--full", "-o", "json"]) == 0
    assert len(_json(capsys)["events"]) == count
