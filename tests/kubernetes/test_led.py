"""The leader of two replicas is killed, or frozen and thawed, before every step of a change.

The other one continues; see `changing` and `replicas`. Requests that the API server has when one
is frozen are awaited, because nobody could take them back.

``KUBERNETES_EVERY=1`` tries all steps, each in both ways.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tools.testbed import Testbed

from tests.kubernetes.changing import GROUPS, change, judged, nothing_is_left, tried
from tests.kubernetes.operators import User
from tests.kubernetes.replicas import accounts, paired
from tests.support.postgres import binaries

pytestmark = pytest.mark.skipif(binaries() is None, reason="there is no PostgreSQL")

EVERY = bool(os.environ.get("KUBERNETES_EVERY"))
TURNS = {"killed-first": "SIGKILL,SIGSTOP"} | ({"frozen-first": "SIGSTOP,SIGKILL"} if EVERY else {})
MOST = 99 if EVERY else 3
"""Steps of each kind: one takes fifteen seconds, until the other leads and a new one stands by."""


@pytest.fixture(scope="module")
def user(testbed: Testbed) -> User:
    return accounts(testbed)


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(GROUPS))
@pytest.mark.parametrize("turns", TURNS)
def test_another_replica_continues_from_any_step_of_a_change(
    user: User, tmp_path: Path, name: str, turns: str
) -> None:
    mark = f"{name}-{turns}"
    group = {kind: min(most, MOST) for kind, most in GROUPS[name].items()}
    with paired(user, tmp_path, TURNS[turns]) as service:
        began = time.time()
        steps = change(user, service, mark, group)
        service.settle()
        nothing_is_left(user.bed, mark)
    assert service.windows  # in some turn one was frozen
    late = [line for window in service.windows for line in window.written(user.bed)]
    assert late == []
    assert service.interruptions == tried(steps, group), steps
    judged(user.bed, began)
