"""Outlook of jobs that wait or were refused by the live service."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowprice.cli.main import main
from shadowprice.core.amounts import parse_duration
from shadowprice.results.advice import Advice
from shadowprice.service.clock import SECOND
from shadowprice.service.queries.outlook import _describe_revision, _rename
from tests.support.services import RunningService, run_service
from tests.support.simulated_world import ManualClock
from tests.support.waiting import wait_until

CLUSTER = {
    "slot": "10min",
    "horizon": 100,
    "servers": [
        {"name": "gpu", "count": 2, "capacity": {"gpu": 4, "cpu": 16, "memory": "64GiB"}},
        {"name": "host", "capacity": {"cpu": 32, "memory": "64GiB"}},
    ],
}


def job(name: str, gpus: int, hours: float = 1.0, **more: Any) -> dict[str, Any]:
    """Return a job that one worker completes in some hours."""
    return {
        "name": name,
        "steps": round(60 * hours),
        "workers": {"max": 1},
        "minibatch_time": "1min",
        "worker": {"gpu": gpus, "cpu": 1},
        "utility": {"kind": "deadline", "value": 10, "by": "20h"},
        **more,
    }


@pytest.fixture
def live(tmp_path: Path) -> Iterator[RunningService]:
    clock = ManualClock(int(time.time()) * SECOND)  # commands read the real one
    with run_service(tmp_path, cluster=CLUSTER, policy="rolling", clock=clock) as found:
        yield found


def changed(record: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return a submission with a change of the outlook applied."""
    result = yaml.safe_load(yaml.safe_dump(record))
    *path, last = change["key"].split(".")
    inner = result
    for part in path:
        inner = inner.setdefault(part, {})
    after = change["after"]
    inner[last] = yaml.safe_load(after) if re.fullmatch(r"[\d.]+", after) else after
    return {**result, "name": "changed"}


def outlook_of(live: RunningService, name: str) -> dict[str, Any]:
    response = live.client.get(f"/v1/jobs/{name}/explain", params={"outlook": True})
    assert response.status_code == 200, response.text
    return dict(response.json()["outlook"])


def quoted(live: RunningService, record: dict[str, Any]) -> dict[str, Any]:
    response = live.client.post("/v1/quote", json=record)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_a_refused_job_names_the_resource_and_changes_that_are_admitted(
    live: RunningService,
) -> None:
    record = job("wide", 8)
    refused = live.client.post("/v1/jobs", json=record).json()
    assert refused["state"] == "refused"
    assert refused["reason"]["code"] == "never-fits"
    assert (refused["reason"]["resource"], refused["reason"]["servers"]) == ("gpu", "gpu")
    message = "a worker needs 8 gpu, and the largest gpu server has 4"
    assert refused["reason"]["message"] == message
    outlook = outlook_of(live, "wide")
    assert [(change["key"], change["after"]) for change in outlook["changes"]] == [
        ("worker.gpu", "4")
    ]
    assert {"utility.value", "steps"} <= set(outlook["ineffective"])
    assert not outlook["untried"]
    assert quoted(live, changed(record, outlook["changes"][0]))["answer"] == "admitted"


def test_late_job_gets_the_earliest_feasible_deadline(live: RunningService) -> None:
    record = job("late", 1, 3.0, utility={"kind": "deadline", "value": 10, "by": "1h"})
    refused = live.client.post("/v1/jobs", json=record).json()
    assert refused["state"] == "refused"
    assert not re.search(r"\bslot", refused["reason"]["message"])
    outlook = outlook_of(live, "late")
    by_key = {change["key"]: change for change in outlook["changes"]}
    assert {"utility.by", "steps"} <= set(by_key)
    for change in outlook["changes"]:
        answer = quoted(live, changed(record, change))
        assert answer["answer"] == "admitted", change
        assert answer["expected"] == change["completion"] <= answer["promise"]
    # One slot less, or 1 % more work, isn't admitted.
    minutes = int(by_key["utility.by"]["after"].removesuffix("min"))
    shorter = {**by_key["utility.by"], "after": f"{minutes - 10}min"}
    assert quoted(live, changed(record, shorter))["answer"] == "refused"
    more = {**by_key["steps"], "after": str(int(by_key["steps"]["after"]) + 1)}
    assert quoted(live, changed(record, more))["answer"] == "refused"


def test_waiting_job_gets_its_expiry_and_admissible_changes(
    live: RunningService,
) -> None:
    for name in ("a", "b"):
        state = live.client.post("/v1/jobs", json=job(name, 4, 2.0)).json()["state"]
        assert state == "admitted"
    record = job("c", 4, 2.0, utility={"kind": "constant", "value": 0.1})
    waiting = live.client.post("/v1/jobs", json=record).json()
    assert waiting["state"] == "standby"
    message = waiting["reason"]["message"]
    assert message.startswith("waits for gpu of gpu servers: its utility by 2")
    assert " is 0.1, below the price" in message
    outlook = outlook_of(live, "c")
    assert (outlook["resource"], outlook["servers"]) == ("gpu", "gpu")
    # The others start in the first slot that isn't decided yet, and take two hours.
    first = live.client.get("/v1/prices", params={"slots": 1}).json()["slots"][0]["begins"]
    starts = datetime.fromisoformat(outlook["starts"])
    assert starts == datetime.fromisoformat(first) + timedelta(hours=2)
    assert outlook["abandoned"] is outlook["waits_beyond"] is None
    assert outlook["changes"]
    assert outlook["lines"][0].startswith(
        f"waits for gpu of gpu servers, until {outlook['starts']}"
    )
    live.client.delete("/v1/jobs/c")
    for change in outlook["changes"]:
        answer = quoted(live, changed(record, change))
        assert (answer["answer"], answer["expected"]) == ("admitted", change["completion"]), change


def test_infeasible_deadline_is_the_reason(
    live: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.service.queries.outlook.LIMIT_SECONDS", 0.0)
    for name in ("a", "b"):
        live.client.post("/v1/jobs", json=job(name, 4))
    record = job("c", 4, utility={"kind": "constant", "value": 0.1})
    assert live.client.post("/v1/jobs", json=record).json()["state"] == "standby"
    outlook = outlook_of(live, "c")
    assert (outlook["starts"], outlook["changes"], outlook["ineffective"]) == (None, [], [])
    assert {"utility.value", "steps", "worker.gpu"} <= set(outlook["untried"])
    first = live.client.get("/v1/prices", params={"slots": 1}).json()["slots"][0]["begins"]
    assert outlook["waits_beyond"] == first
    assert any(line.startswith("not tried") for line in outlook["lines"])


def test_promised_job_gets_start_and_completion(live: RunningService) -> None:
    record = job("a", 1)
    first = live.client.get("/v1/prices", params={"slots": 1}).json()["slots"][0]["begins"]
    ends = datetime.fromisoformat(first) + timedelta(hours=1)
    quote = live.client.post("/v1/quote", json=record, params={"outlook": True}).json()
    live.client.post("/v1/jobs", json=record)
    for outlook in (quote["outlook"], outlook_of(live, "a")):
        assert outlook["starts"] == first
        assert datetime.fromisoformat(outlook["completes"]) == ends
        assert outlook["changes"] == outlook["untried"] == []
        [line] = outlook["lines"]
        assert line.startswith(f"starts by {first}, and is expected to complete by ")
    assert live.client.get("/v1/jobs/a/explain").json()["outlook"] is None
    closed = live.client.delete("/v1/jobs/a").json()
    assert closed["state"] == "cancelled"
    body = live.client.get("/v1/jobs/a/explain", params={"outlook": True}).json()
    assert body["outlook"] is None
    quote = live.client.post("/v1/quote", json=job("b", 8), params={"outlook": True}).json()
    assert [change["key"] for change in quote["outlook"]["changes"]] == ["worker.gpu"]


def quoted_outlook(live: RunningService, record: dict[str, Any]) -> dict[str, Any]:
    response = live.client.post("/v1/quote", json=record, params={"outlook": True})
    assert response.status_code == 200, response.text
    outlook = dict(response.json()["outlook"])
    del outlook["seconds"]
    return outlook


def test_a_quote_for_the_name_of_an_open_job_describes_the_quoted_job(live: RunningService) -> None:
    live.client.post("/v1/jobs", json=job("a", 1))
    live.client.delete("/v1/jobs/a")
    # The key of the second job isn't its name, because the name was used before.
    for record in (job("a", 4, 2.0), job("b", 1, 2.0)):
        assert live.client.post("/v1/jobs", json=record).json()["state"] == "admitted"
    first = live.client.get("/v1/prices", params={"slots": 1}).json()["slots"][0]["begins"]
    begins = datetime.fromisoformat(first)
    unworthy = {"utility": {"kind": "constant", "value": 0.1}}
    for name in ("a", "b"):
        promised = quoted_outlook(live, job(name, 3, 1.0))
        assert datetime.fromisoformat(promised["completes"]) == begins + timedelta(hours=1)
        assert promised == quoted_outlook(live, job("new", 3, 1.0))
        waiting = quoted_outlook(live, job(name, 4, 2.0, **unworthy))
        assert datetime.fromisoformat(waiting["starts"]) == begins + timedelta(hours=2)
        assert (waiting["resource"], waiting["admitted_now"]) == ("gpu", False)
        assert waiting["changes"]
        assert waiting == quoted_outlook(live, job("new", 4, 2.0, **unworthy))


def test_commands_print_the_outlook(
    live: RunningService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    token = (tmp_path / "data" / "operator.token").read_text().strip()
    monkeypatch.setenv("SHADOWPRICE_TOKEN", token)
    file = tmp_path / "jobs.yaml"
    late = job("late", 1, 3.0, utility={"kind": "deadline", "value": 10, "by": "1h"})
    file.write_text(yaml.safe_dump({"jobs": [job("wide", 8), late]}))
    assert main(["submit", str(file), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "worker.gpu: 4 instead of 8 (50 % less)" in printed
    assert live.client.get("/v1/jobs").json()["jobs"] == []
    assert main(["submit", str(file)]) == 0
    assert "worker.gpu: 4 instead of 8 (50 % less)" in capsys.readouterr().out
    assert main(["explain", "late"]) == 0
    printed = capsys.readouterr().out
    [moment] = re.findall(r"utility\.by: \d+min instead of 1h .*; done by (.*)", printed)
    promise = outlook_of(live, "late")["changes"][0]["completion"]
    local = datetime.fromisoformat(promise).astimezone()
    assert moment.endswith(local.strftime("%H:%M")) or moment == local.strftime("%H:%M:%S")
    assert main(["explain", "late", "--no-advice"]) == 0
    assert "sufficient" not in capsys.readouterr().out


def advised_by(
    live: RunningService, words: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Quote a plain command; return the outlook, and its changes by option."""
    capsys.readouterr()
    assert main(["submit", "--dry-run", "-o", "json", *words, "--", "train"]) == 0
    [quote] = json.loads(capsys.readouterr().out)
    return quote, {change["option"]: change for change in quote["outlook"]["changes"]}


def test_advice_on_a_plain_command_is_options_that_can_be_typed(
    live: RunningService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    token = (tmp_path / "data" / "operator.token").read_text().strip()
    monkeypatch.setenv("SHADOWPRICE_TOKEN", token)
    base = {"--workdir": "/srv", "--name": "plain"}
    wide = base | {"--gpus": "8", "--time": "3h", "--steps": "700", "--memory": "16GiB"}
    # It would complete in 3 h, too late for its deadline.
    late = base | {"--gpus": "1", "--time": "3:00:00", "--steps": "700", "--by": "1h"}
    long = base | {"--gpus": "1", "--time": "3h", "--by": "1h"}
    keys = {"--gpus": "worker.gpu", "--time": "minibatch_time", "--by": "by"}
    for options, expected in ((wide, {"--gpus"}), (late, {"--time", "--by"}), (long, {"--time"})):
        quote, changes = advised_by(live, [*chain(*options.items())], capsys)
        assert quote["answer"] == "refused"
        assert expected <= set(changes) <= set(options)
        assert {"workers.max", "steps"}.isdisjoint(quote["outlook"]["ineffective"])
        text = "\n".join(quote["outlook"]["lines"])
        assert not re.search(r"worker\.|minibatch_time|workers\.|\bby:", text)
        for option, change in changes.items():
            assert change["key"] == keys[option]
            typed = options | {option: change["option_after"]}
            assert f"{option} {change['option_after']} instead of {change['option_before']}" in text
            assert advised_by(live, [*chain(*typed.items())], capsys)[0]["answer"] == "admitted"
    assert changes["--time"]["option_before"] == "3h"
    _, changes = advised_by(live, [*chain(*late.items())], capsys)
    assert changes["--time"]["option_before"] == "3h"
    assert parse_duration(changes["--time"]["option_after"]).seconds <= 3600
    # A job file states keys, so its owner reads keys.
    live.client.post("/v1/jobs", json=job("wide", 8))
    assert outlook_of(live, "wide")["changes"][0]["option"] is None


def test_advice_on_an_open_job_is_a_command_that_revises_it(
    live: RunningService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    token = (tmp_path / "data" / "operator.token").read_text().strip()
    monkeypatch.setenv("SHADOWPRICE_TOKEN", token)
    words = ["submit", "--gpus", "4", "--time", "2h", "--workdir", "/srv"]
    for name, priority in (("a", "normal"), ("b", "normal"), ("my job", "low")):
        assert main([*words, "--name", name, "--priority", priority, "--", "train"]) == 0
    assert live.client.get("/v1/jobs/my job").json()["state"] == "standby"
    capsys.readouterr()
    assert main(["explain", "my job"]) == 0
    [command] = re.findall(r"sufficient  shadowprice (.*?) \(", capsys.readouterr().out)
    assert command == "revise 'my job' --set priority=high"
    assert main(shlex.split(command)) == 0
    live.service._clock.advance(600)  # a waiting job is decided again in the next slot
    wait_until(lambda: live.client.get("/v1/jobs/my job").json()["state"] == "admitted")


def test_unrevisable_change_is_advised_as_a_resubmission() -> None:
    gpus = {"option": "--gpus", "option_before": "8", "option_after": "4"}
    size = Advice("size", "worker.gpu", "8", "4", "50 % less", "5", **gpus)
    text = "cancel it and submit it again with --gpus 4 instead of 8"
    assert _describe_revision("a", size) == text
    value = Advice("value", "utility.value", "1", "2.5", "2.5 times as much", "2.4")
    assert _describe_revision("a", value) == "shadowprice revise a --set utility.value=2.5"


def test_the_advised_deadline_of_a_plain_command_is_in_local_time(
    live: RunningService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    token = (tmp_path / "data" / "operator.token").read_text().strip()
    monkeypatch.setenv("SHADOWPRICE_TOKEN", token)
    monkeypatch.setenv("TZ", "UTC-5:45")
    time.tzset()
    try:
        words = ["--gpus", "1", "--time", "9h", "--name", "late", "--workdir", "/srv"]
        assert main(["submit", *words, "--by", "1h", "--", "train"]) == 0
        [by] = re.findall(r"--by (\S+) instead of 1h", capsys.readouterr().out)
        change = next(
            change for change in outlook_of(live, "late")["changes"] if change["key"] == "by"
        )
        moment = datetime.fromisoformat(by)
        assert moment.tzinfo is None
        assert moment.astimezone() == datetime.fromisoformat(change["after"])
        assert main(["submit", "--dry-run", *words, "--by", by, "--", "train"]) == 0
        assert "admitted" in capsys.readouterr().out
    finally:
        monkeypatch.undo()
        time.tzset()


def test_variant_of_a_job_has_a_name_that_no_job_has(live: RunningService) -> None:
    for name in ("twice", "twice (variant)"):
        assert live.client.post("/v1/jobs", json=job(name, 1)).is_success
    engine = live.service.require_writer()._durable.state.engine
    known = engine.jobs["twice"].job
    assert _rename(known, engine).name not in engine.jobs
