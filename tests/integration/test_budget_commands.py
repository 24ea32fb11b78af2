"""Accounts from Python and from the command line, against a running service."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowprice.cli.commands.accounts import parse_moment
from shadowprice.cli.main import main
from shadowprice.client import AsyncClient, Client, Endpoint, ServiceError
from shadowprice.core.errors import InputError
from tests.support.services import CLUSTER, RunningService, job, run_service

TENANTS = [{"name": "vision", "budget": {"points": 30, "period": "7d"}}, {"name": "speech"}]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("accounts")
    with run_service(folder, policy="oasis", cluster={**CLUSTER, "tenants": TENANTS}) as found:
        wide = {"tenant": "speech", "chunks": 8, "minibatches": 60}
        for index in range(20):  # until places cost something
            if found.client.post("/v1/quote", json=job("x", tenant="vision")).json()["price"] > 0.5:
                break
            found.client.post("/v1/jobs", json=job(f"filler-{index}", **wide))
        yield found


@pytest.fixture
def address(live: RunningService) -> Endpoint:
    return Endpoint(live.address, live.service.token_file.read_text().strip())


@pytest.fixture(autouse=True)
def _environment(address: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SHADOWPRICE_SERVER", address.url)
    monkeypatch.setenv("SHADOWPRICE_TOKEN", address.token or "")


def test_python_client_reads_and_changes_budgets(address: Endpoint) -> None:
    with Client(address) as client:
        tenant = client.put_tenant("audio", budget={"points": 20, "period": "1d"})
        assert tenant.account is not None
        assert tenant.account.held == 20.0
        assert client.put_tenant("audio", {"gpu": 2}).budget == tenant.budget
        given = client.grant("audio", 2.5, note="deadline")
        assert given.account is not None
        assert given.account.held == 22.5
        paid = client.submit(job("py", tenant="audio"))
        assert paid.points is not None
        statement = client.statement("audio", back=0)
        assert [entry.kind for entry in statement.entries] == ["debit", "grant", "grant"]
        assert statement.entries[0].points == -paid.points.price
        assert statement.entries[1].note == "deadline"
        assert statement.closing == statement.entries[0].balance
        assert statement.entries[0].at.utcoffset() is not None
        [one] = client.statement("audio", kinds=["debit"], limit=1).entries
        assert one.job == "py"
        assert len(list(client.entries("audio"))) == 3
        later = datetime.now(UTC) + timedelta(hours=1)
        assert client.statement("audio", since=later).entries == []
        refunded = paid.points.model_copy(update={"refund": paid.points.price})
        assert client.cancel("py").points == refunded
        assert client.remove_budget("audio").account is None
        with pytest.raises(ServiceError) as caught:
            client.grant("audio", 1)
        assert caught.value.code == "not-found"
        client.remove_tenant("audio")


def test_async_client_reads_and_changes_budgets(address: Endpoint) -> None:
    async def ask() -> tuple[int, int]:
        async with AsyncClient(address) as client:
            statement = await client.statement("vision", limit=1)
            return len(statement.entries), len([entry async for entry in client.entries("vision")])

    first, whole = asyncio.run(ask())
    assert first == 1 <= whole


def test_a_tenant_reads_its_statement(
    live: RunningService,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": [job("cli", tenant="vision")]}))
    file = str(tmp_path / "jobs.yaml")
    assert main(["quote", file]) == 0
    assert "LEFT" in capsys.readouterr().out
    assert main(["submit", file]) == 0
    assert main(["status", "cli"]) == 0
    assert "paid, 0 used so far" in capsys.readouterr().out
    assert main(["cancel", "cli"]) == 0
    monkeypatch.setenv("SHADOWPRICE_TOKEN", live.token("vision"))
    assert main(["statement"]) == 0
    captured = capsys.readouterr().out
    assert "30 points every 7d, none kept" in captured
    assert captured.index("refund") < captured.index("debit") < captured.index("grant")
    assert "opening 0, closing 30" in captured
    assert main(["statement", "vision", "--since", "1h", "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["kind"] for row in rows[:2]] == ["refund", "debit"]
    assert sum(float(row["points"]) for row in rows) == float(rows[0]["balance"]) == 30.0
    assert main(["statement", "-o", "json", "--limit", "1"]) == 0
    out = capsys.readouterr()
    record = json.loads(out.out)
    assert (record["tenant"], len(record["entries"])) == ("vision", 1)
    assert "and more" in out.err
    assert main(["statement", "speech"]) == 2
    assert "unknown tenant 'speech'" in capsys.readouterr().err
    assert main(["budget", "vision", "--points", "1000"]) == 2  # only an operator may
    assert main(["budget"]) == 0
    assert "speech" not in capsys.readouterr().out


def test_an_operator_sets_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "lab", "--points", "12.5"]) == 2
    assert "--period: is missing" in capsys.readouterr().err
    assert main(["budget", "lab", "--points", "12.5", "--period", "1d"]) == 0
    assert "12.5 points every 1d, none kept" in capsys.readouterr().out
    words = ["budget", "lab", "--carry", "all", "--begins", "2026-11-23", "-o", "json"]
    assert main(words) == 0
    captured = json.loads(capsys.readouterr().out)
    assert captured["budget"] == {
        "points": 12.5, "period": "1d", "since": "2026-11-23T00:00:00Z", "carry": "all",
    }  # fmt: skip
    assert main(["budget", "lab", "--grant", "3", "--note", "well done"]) == 0
    assert "15.5 until" in capsys.readouterr().out
    assert main(["statement"]) == 0  # of all
    captured = capsys.readouterr().out
    assert "lab" in captured
    assert "15.5" in captured
    assert main(["statement", "-o", "csv"]) == 0
    rows = {row["tenant"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["lab"]["held"] == "15.5"
    assert rows["speech"]["held"] == ""
    assert main(["budget", "lab", "--remove"]) == 0
    assert "spends without limit" in capsys.readouterr().out
    assert main(["statement", "lab"]) == 0
    assert "expiry" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["budget", "--points", "5"], "TENANT: is missing"),
        (
            ["budget", "vision", "--points", "5", "--remove"],
            "--remove: not valid with options of the budget",
        ),
        (["budget", "vision", "--carry", "some"], "write 100, or all"),
        (["budget", "vision", "--carry", "nan"], "--carry: expected a number of points"),
        (["budget", "vision", "--carry", "-5"], "--carry: expected a number of points, got '-5'"),
        (["budget", "vision", "--period", "0s"], "error: budget.period: "),
        (["budget", "vision", "--period", "3 slots"], "7d"),
        (["budget", "nobody"], "known:"),
        (["statement", "vision", "--since", "yesterday"], "write 7d"),
        (["statement", "vision", "--tenant", "vision"], "applies to runs only"),
        (["statement", "no/such/run"], "no/such/run"),
        (["statement", ".", "--since", "7d"], "applies to the live service only"),
    ],
)
def test_errors_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_times_are_absolute_or_relative() -> None:
    now = datetime.now(UTC)
    assert parse_moment(None, "--since") is None
    for text, wanted in (("7d", now - timedelta(days=7)), ("90s", now - timedelta(seconds=90))):
        result: Any = parse_moment(text, "--since")
        assert abs(result - wanted) < timedelta(seconds=10)
    assert parse_moment("2026-11-23", "--since") == datetime(2026, 11, 23, tzinfo=UTC)
    with pytest.raises(InputError):
        parse_moment("3 slots", "--since")
