"""A service whose policy is a file: it restarts with the same file, another version, or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.policy import unwrap_policy
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.queries.whatif import WhatIfParameters, parse_request
from tests.unit.service.test_durable_engine import CLUSTER, Bench

SAMPLE = Path(__file__).parents[3] / "examples" / "policy.py"
STATEFUL = """
    def __init__(self, context, parameters):
        super().__init__(context, parameters)
        self.seen = [parameters]

    def resume(self, view):
        self.seen = list(view.open_jobs)

"""
"""State of its own, an object of the file's own class among it."""


class _Bench(Bench):
    def choose(self, choice: PolicyChoice) -> None:
        self.choice = choice
        self.read()

    @property
    def policy(self) -> Any:
        return unwrap_policy(self.truth.state.engine.policy)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "policy.py"
    head, mark, rest = SAMPLE.read_text().partition("    def decide")
    file.write_text(head + STATEFUL.strip("\n") + "\n\n" + mark + rest)
    return file


@pytest.fixture
def bench(tmp_path: Path, path: Path) -> Iterator[_Bench]:
    result = _Bench(tmp_path / "data", PolicyChoice.named(f"{path}:FirstFit"), virtual=True)
    for index in range(6):
        result.submit(f"job-{index}", chunks=3)
        result.slot(index % 2)
    yield result
    result.store.close()


def test_unchanged_policy_file_restores_its_state(bench: _Bench, path: Path) -> None:
    bench.truth.write_snapshot()
    digest, seen = bench.truth.state.engine.state_digest(), bench.policy.seen
    assert type(seen[0]).__name__ == "FirstFitParameters"
    bench.choose(PolicyChoice.named(f"{path}:FirstFit"))
    assert bench.truth.state.engine.state_digest() == digest
    assert bench.policy.seen == seen


def test_another_version_of_the_file_resyncs(bench: _Bench, path: Path) -> None:
    bench.truth.write_snapshot()
    digest = bench.truth.state.engine.state_digest()
    path.write_text(path.read_text() + "\n# another version\n")
    bench.choose(PolicyChoice.named(f"{path}:FirstFit"))
    assert bench.truth.state.engine.state_digest() == digest
    assert bench.policy.seen == list(bench.truth.state.engine.open_jobs)
    bench.slot(40)
    assert not bench.truth.state.views


def test_a_parameter_that_is_gone_does_not_stop_a_restart(bench: _Bench, path: Path) -> None:
    bench.choose(PolicyChoice.named(f"{path}:FirstFit", {"workers": "max"}))
    bench.truth.write_snapshot()
    path.write_text(path.read_text().replace("workers: Literal", "count: Literal"))
    path.write_text(path.read_text().replace("parameters.workers ==", "parameters.count =="))
    digest = bench.truth.state.engine.state_digest()
    bench.choose(PolicyChoice.named(f"{path}:FirstFit"))
    assert bench.truth.state.engine.state_digest() == digest
    bench.slot(40)
    assert not bench.truth.state.views


def test_another_policy_takes_over_after_the_file_is_deleted(bench: _Bench, path: Path) -> None:
    bench.truth.write_snapshot()
    path.unlink()
    digest = bench.truth.state.engine.state_digest()
    bench.choose(PolicyChoice("fifo"))
    assert bench.truth.state.engine.state_digest() == digest
    bench.slot(40)
    assert not bench.truth.state.views


def test_a_request_cannot_name_a_file(path: Path) -> None:
    now = PolicyChoice.named(f"{path}:FirstFit")
    with pytest.raises(InputError, match="unknown policy"):
        parse_request(WhatIfParameters(policy=f"{path}:FirstFit"), CLUSTER, now, 0)
    wanted = WhatIfParameters(policy=now.name, set={"workers": "max"})
    asked = parse_request(wanted, CLUSTER, now, 0)
    assert asked.choice == PolicyChoice.named(f"{path}:FirstFit", {"workers": "max"})
    assert asked.settings == {"workers": "max"}
    own = parse_request(WhatIfParameters(), CLUSTER, asked.choice, 0)
    assert (own.choice, own.settings) == (asked.choice, {})
