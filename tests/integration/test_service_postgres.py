"""The live service on a real PostgreSQL: the same responses, failover, and a server that dies."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.local.executor import LocalExecutor
from shadowprice.service.budgets.operations import put_tenant
from shadowprice.service.problems import ProblemError
from shadowprice.service.store import Store, StoreError, tables
from tests.support.ledger_checks import check_ledger
from tests.support.policy_faults import retry_failed_operation
from tests.support.postgres import Server, binaries, postgres
from tests.support.services import RunningService, job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(
        binaries() is None, reason="PostgreSQL is not installed: apt-get install postgresql"
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    logging.disable(logging.CRITICAL)
    with postgres() as found:
        yield found
    logging.disable(logging.NOTSET)


def _databases(server: Server) -> Iterator[str]:
    """Return a function that creates empty databases."""
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    while True:
        name = f"whole_{uuid4().hex}"
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield server.url.removesuffix("postgres") + name


@pytest.fixture
def database(server: Server) -> str:
    """The address of an empty database."""
    return next(_databases(server))


def end_connections_with_the_lock(database: str) -> None:
    """Terminate the writer's connection, as a restart of the server or of a proxy does."""
    engine = create_engine(database, poolclass=NullPool)
    with engine.begin() as connection:
        terminate = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(text(terminate)).scalars().all() == [True]


def test_standby_takes_over_from_the_writer(database: str, tmp_path: Path) -> None:
    with run_service(tmp_path, policy="oasis", data=database) as first:
        body = first.client.post("/v1/jobs", json=job("kept")).json()
        second = run_service(tmp_path, policy="oasis", data=database)
        with second as standby:
            assert standby.client.get("/healthz").status_code == 200
            assert standby.client.get("/readyz").json() == {"status": "standby"}
            refused = standby.client.get("/v1/jobs")
            assert refused.status_code == 503
            assert refused.json()["code"] == "standby"
            assert first.client.get("/v1/jobs/kept").status_code == 200
            # As when the process is gone: its connection ends, and the lock with it.
            first.service.store._writer.connection.driver_connection.close()
            wait_until(lambda: standby.client.get("/readyz").status_code == 200)
            after = standby.client.get("/v1/jobs/kept").json()
            assert after["promise"] == body["promise"]
            assert standby.client.post("/v1/jobs", json=job("later")).status_code == 200
            # The first one has lost the lock, and can write no more.
            assert first.client.post("/v1/jobs", json=job("stale")).status_code == 503
            assert standby.client.get("/v1/jobs/stale").status_code == 404


def test_lost_writer_is_not_replaced_by_a_transaction(database: str) -> None:
    with closing(Store(database)) as first, closing(Store(database)) as second:
        assert first.open()
        assert not second.open()
        end_connections_with_the_lock(database)
        wait_until(second.open)
        for _ in range(2):  # the first one notices the loss, the second one must not reconnect
            with pytest.raises(StoreError), first.transaction() as connection:
                first.put(connection, "written by", "first")
        assert not first.reopen()
        with second.transaction() as connection:
            second.put(connection, "written by", "second")
        assert first.get("written by") == "second"


def test_purge_of_a_former_leader_does_not_make_it_a_writer_again(
    database: str, tmp_path: Path
) -> None:
    with run_service(tmp_path, data=database) as former:
        service = former.service
        with service.store.transaction() as connection:  # a price to purge
            row = {"at": 1, "slot": 0, "grain": 0, "record": "{}"}
            service.store.write(connection, tables.prices.insert(), [row])
        with run_service(tmp_path, data=database) as leader:
            end_connections_with_the_lock(database)
            wait_until(lambda: leader.client.get("/readyz").status_code == 200)

            async def write_and_purge() -> None:
                with pytest.raises(ProblemError, match="may not have been committed"):
                    await service.require_writer().do(
                        put_tenant("vision", {}, None, budgeted=False)
                    )
                await service.driver.purge_expired()  # before the first attempt to recover

            loop = service._tasks[0].get_loop()
            future = asyncio.run_coroutine_threadsafe(write_and_purge(), loop)
            future.result(WAIT_LIMIT_SECONDS)
            wait_until(lambda: "now the leader" in (service.require_writer().health_error or ""))
            assert former.client.get("/readyz").status_code == 503
            assert former.client.post("/v1/jobs", json=job("stale")).status_code == 503
            assert leader.client.get("/v1/jobs/stale").status_code == 404
            assert leader.client.post("/v1/jobs", json=job("later")).status_code == 200


def test_search_matches_part_of_the_job_name(database: str, tmp_path: Path) -> None:
    with run_service(tmp_path, data=database) as live:
        names = ["lr_01", "LR-02", "lrx0", "a%b", "a\\b", "it's"]
        for name in names:
            assert live.client.post("/v1/jobs", json=job(name)).status_code == 200
        for search in ("lr", "LR_", "_", "%", "\\", "'", "B", "zz"):
            page = live.client.get("/v1/jobs", params={"search": search}).json()
            expected = [name for name in reversed(names) if search.lower() in name.lower()]
            assert [job["name"] for job in page["jobs"]] == expected
            assert page["next"] is None


def test_writer_without_executor_state_yields_leadership(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), ExitStack() as ends:

        def begun(records: str) -> AbstractContextManager[RunningService]:
            executor = LocalExecutor(ExecutorOptions(str(tmp_path / records)))
            return run_service(tmp_path, data=database, executor=executor)

        with begun("one") as first:
            assert first.client.get("/readyz").status_code == 200
            standby = ends.enter_context(begun("two"))
        time.sleep(5)  # it is refused again and again
        assert standby.client.get("/readyz").json() == {"status": "standby"}
        with begun("one") as again:
            wait_until(lambda: again.client.get("/readyz").status_code == 200)
            assert standby.client.get("/readyz").json() == {"status": "standby"}
        assert caplog.text.count("standing by: ") == 1


def test_database_crash_loses_no_acknowledged_request(
    server: Server, database: str, tmp_path: Path
) -> None:
    with run_service(tmp_path, policy="oasis", data=database) as live:
        names = [f"survives-{index}" for index in range(5)]
        for name in names:
            assert live.client.post("/v1/jobs", json=job(name)).status_code == 200
        server.stop()
        refused = live.client.post("/v1/jobs", json=job("refused"))
        assert refused.status_code == 503
        assert refused.json()["code"] == "storage"
        assert live.client.get("/readyz").status_code == 503
        assert live.client.get("/v1/service").status_code == 200
        server.start()
        wait_until(lambda: live.client.get("/readyz").status_code == 200)
        assert live.client.post("/v1/jobs", json=job("refused")).status_code == 200
        for name in names:
            assert live.client.get(f"/v1/jobs/{name}").json()["state"] == "admitted"


class Between:
    """Proxy to a server that can lose the connections of its clients."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                self._clients.append(client)
                self._servers.append(server)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(piece)

    def lose(self) -> None:
        """Disconnect the clients without closing their connections to the server."""
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in (*self._clients, *self._servers):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # the thread that reads it ends
            connection.close()


def test_half_open_connection_blocks_no_other_writer(
    server: Server, database: str, tmp_path: Path
) -> None:
    with closing(Between(server.port)) as between:
        url = database.replace(f":{server.port}/", f":{between.port}/")
        with run_service(tmp_path, policy="oasis", data=url) as live:
            assert live.client.post("/v1/jobs", json=job("before")).status_code == 200
            between.lose()
            wait_until(lambda: live.client.post("/v1/jobs", json=job("after")).status_code == 200)
            assert live.client.get("/v1/jobs/before").json()["state"] == "admitted"


def test_postgres_stores_accounts(database: str, tmp_path: Path) -> None:
    budget = {"points": 99_999_999.5, "period": "7d", "since": "9999-01-01T00:00:00Z"}
    with run_service(tmp_path, policy="oasis", data=database) as live:
        for tenant in ("vision", "speech"):
            body = live.client.put(f"/v1/tenants/{tenant}", json={"budget": budget}).json()
            assert body["account"]["held"] == 99_999_999.5
        for index in range(12):  # until places cost something
            live.client.post("/v1/jobs", json=job(f"job-{index}", tenant="vision"))
        live.client.delete("/v1/jobs/job-11")
        before = live.client.get("/v1/tenants/vision/statement").json()
        assert {"grant", "debit", "refund"} == {entry["kind"] for entry in before["entries"]}
    with run_service(tmp_path, policy="oasis", data=database) as again:
        assert again.client.get("/v1/tenants/vision/statement").json() == before
        check_ledger(again.service.store)


@pytest.mark.parametrize("operation", ["done", "failed", "cancel", "a tenant", "submit several"])
def test_failed_operation_is_rolled_back_on_postgres(
    server: Server, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    assert retry_failed_operation(
        _databases(server), "rolling", operation, monkeypatch, restart=True
    )


def test_a_null_character_is_refused_before_the_server_sees_it(
    database: str, tmp_path: Path
) -> None:
    with run_service(tmp_path, policy="oasis", data=database) as live:
        for path in ("/v1/jobs?tenant=a%00", "/v1/jobs/a%00", "/v1/decisions?job=%00"):
            response = live.client.get(path)
            assert response.status_code == 422, response.text
            assert "null character" in response.json()["detail"]
        assert live.client.get("/readyz").status_code == 200
