"""Every policy decides on recorded workloads as it did when they were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.policy_cases import policy_names
from tests.support.recorded_decisions import differences, record_digests, stored_digests

MEND = "if these decisions were meant to change: python -m tests.support.recorded_decisions --write"


@pytest.mark.parametrize("policy", policy_names())
def test_decisions_are_those_recorded(policy: str) -> None:
    result = record_digests(policy)
    assert result, policy
    assert not differences(result, stored_digests(policy), policy), MEND


@pytest.mark.traces
@pytest.mark.parametrize("policy", policy_names())
def test_decisions_on_pieces_of_traces_are_those_recorded(policy: str, traces: Path) -> None:
    assert not differences(
        record_digests(policy, traces), stored_digests(policy, of_traces=True), policy
    ), MEND
