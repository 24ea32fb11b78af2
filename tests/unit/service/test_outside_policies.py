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
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import CLUSTER

SAMPLE = Path(__file__).parents[3] / "examples" / "policy.py"
STATEFUL = """
    def __init__(self, context, parameters):
        super().__init__(context, parameters)
        self.seen = [parameters]

    def resume(self, view):
        self.seen = list(view.open_jobs)

"""
"""State of its own, including an object of the file's own class."""


class PolicyFileBench(EngineBench):
    def choose(self, choice: PolicyChoice) -> None:
        self.choice = choice
        self.recover()

    @property
    def policy(self) -> Any:
        return unwrap_policy(self.durable.state.engine.policy)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "policy.py"
    head, mark, rest = SAMPLE.read_text().partition("    def decide")
    file.write_text(head + STATEFUL.strip("\n") + "\n\n" + mark + rest)
    return file


@pytest.fixture
def bench(tmp_path: Path, path: Path) -> Iterator[PolicyFileBench]:
    result = PolicyFileBench(
        tmp_path / "data", PolicyChoice.named(f"{path}:FirstFit"), virtual=True
    )
    for index in range(6):
        result.submit(f"job-{index}", chunks=3)
        result.advance(index % 2)
    yield result
    result.store.close()


def test_unchanged_policy_file_restores_its_state(bench: PolicyFileBench, path: Path) -> None:
    bench.durable.write_snapshot()
    digest, seen = bench.durable.state.engine.state_digest(), bench.policy.seen
    assert type(seen[0]).__name__ == "FirstFitParameters"
    bench.choose(PolicyChoice.named(f"{path}:FirstFit"))
    assert bench.durable.state.engine.state_digest() == digest
    assert bench.policy.seen == seen


def test_another_version_of_the_file_resyncs(bench: PolicyFileBench, path: Path) -> None:
    bench.durable.write_snapshot()
    digest = bench.durable.state.engine.state_digest()
    path.write_text(path.read_text() + "\n# another version\n")
    bench.choose(PolicyChoice.named(f"{path}:FirstFit"))
    assert bench.durable.state.engine.state_digest() == digest
    assert bench.policy.seen == list(bench.durable.state.engine.open_jobs)
    bench.advance(40)
    assert not bench.durable.state.views


def test_a_parameter_that_is_gone_does_not_stop_a_restart(
    bench: PolicyFileBench, path: Path
) -> None:
    bench.choose(PolicyChoice.named(f"{path}:FirstFit", {"workers": "max"}))
    bench.durable.write_snapshot()
    path.write_text(path.read_text().replace("workers: Literal", "count: Literal"))
    path.write_text(path.read_text().replace("parameters.workers ==", "parameters.count =="))
    digest = bench.durable.state.engine.state_digest()
    bench.choose(PolicyChoice.named(f"{path}:FirstFit"))
    assert bench.durable.state.engine.state_digest() == digest
    bench.advance(40)
    assert not bench.durable.state.views


def test_another_policy_takes_over_after_the_file_is_deleted(
    bench: PolicyFileBench, path: Path
) -> None:
    bench.durable.write_snapshot()
    path.unlink()
    digest = bench.durable.state.engine.state_digest()
    bench.choose(PolicyChoice("fifo"))
    assert bench.durable.state.engine.state_digest() == digest
    bench.advance(40)
    assert not bench.durable.state.views


def test_a_request_cannot_name_a_file(path: Path) -> None:
    now = PolicyChoice.named(f"{path}:FirstFit")
    with pytest.raises(InputError, match="unknown policy"):
        parse_request(WhatIfParameters(policy=f"{path}:FirstFit"), CLUSTER, now, 0)
    wanted = WhatIfParameters(policy=now.name, set={"workers": "max"})
    requested = parse_request(wanted, CLUSTER, now, 0)
    assert requested.choice == PolicyChoice.named(f"{path}:FirstFit", {"workers": "max"})
    assert requested.question.set == {"workers": "max"}
    own = parse_request(WhatIfParameters(), CLUSTER, requested.choice, 0)
    assert (own.choice, own.question.set) == (requested.choice, {})
