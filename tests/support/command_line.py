"""The command line, called in the test's process on a small workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.policies import registry
from tests.support.flat_rate import INFO, FlatPricePolicy, FlatRateParameters

CLUSTER = """\
slot: 10min
horizon: 20
servers:
  - {name: gpu, count: 2, capacity: {gpu: 2}}
"""

JOB = (
    "{{name: {name}, arrival: {arrival}, chunks: 4, minibatches: 10, minibatch_time: 60s, "
    "worker: {{gpu: 1}}, utility: {utility}}}"
)

JOBS = "jobs:\n" + "".join(
    f"  - {JOB.format(name=name, arrival=arrival, utility=utility)}\n"
    for name, arrival, utility in (
        ("first", "0 slots", "{kind: constant, value: 10}"),
        ("second", "0 slots", "{kind: sigmoid, value: 12, decay: 0, target: 2 slots}"),
        ("third", "300s", "{kind: deadline, value: 9, by: 9min}"),
    )
)


@dataclass
class CommandResult:
    status: int
    out: str
    err: str


Call = Callable[..., CommandResult]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Call]:
    """Run a command in an empty directory that holds the small workload."""
    known = dict(registry.builtin_policies())
    known["flat-rate"] = INFO
    known["broken"] = replace(INFO, name="broken", build=f"{__name__}:silent")
    known["failing"] = replace(INFO, name="failing", build=f"{__name__}:failing")
    monkeypatch.setattr(registry, "builtin_policies", lambda: known)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "j.yaml").write_text(JOBS)

    def run(*words: str) -> CommandResult:
        capfd.readouterr()
        status = main(words)
        out, err = capfd.readouterr()
        return CommandResult(status, out, err)

    yield run
    assert not [entry for entry in tmp_path.rglob(".*") if "unfinished" in entry.name]


class Silent(FlatPricePolicy):
    """A policy with a bug: it returns no decision."""

    def decide(self, view, event):  # type: ignore[no-untyped-def]
        return []


class Failing(FlatPricePolicy):
    """A policy that stops with an error of its own."""

    def decide(self, view, event):  # type: ignore[no-untyped-def]
        raise ZeroDivisionError("nothing to divide by")


def silent(context: object, parameters: FlatRateParameters) -> FlatPricePolicy:
    return Silent(parameters.price)


def failing(context: object, parameters: FlatRateParameters) -> FlatPricePolicy:
    return Failing(parameters.price)
