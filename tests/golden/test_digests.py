"""Every policy decides on recorded workloads what it decided when they were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.policy_cases import every_policy
from tests.support.recorded_decisions import differences, known, recorded

MEND = "if these decisions were meant to change: python -m tests.support.recorded_decisions --write"


@pytest.mark.parametrize("policy", every_policy())
def test_decisions_are_those_recorded(policy: str) -> None:
    found = recorded(policy)
    assert found, policy
    assert not differences(found, known(policy), policy), MEND


@pytest.mark.traces
@pytest.mark.parametrize("policy", every_policy())
def test_decisions_on_pieces_of_traces_are_those_recorded(policy: str, traces: Path) -> None:
    assert not differences(recorded(policy, traces), known(policy, of_traces=True), policy), MEND
