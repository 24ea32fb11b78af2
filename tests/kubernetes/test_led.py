"""Two replicas, and the one that leads killed, or frozen and thawed later, before every step of a
generation change: the other goes on. See `changing` and `replicas`. What is with the API server
when one is frozen is waited for: nobody could take it back.

``KUBERNETES_EVERY=1`` freezes, too, where the leader is killed, and the other way round.
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
from tests.postgres import binaries

pytestmark = pytest.mark.skipif(binaries() is None, reason="there is no PostgreSQL")

TURNS = {"killed-first": "SIGKILL,SIGSTOP", "frozen-first": "SIGSTOP,SIGKILL"}
TURNS = dict(list(TURNS.items())[: 1 + ("KUBERNETES_EVERY" in os.environ)])


@pytest.fixture(scope="module")
def user(testbed: Testbed) -> User:
    return accounts(testbed)


@pytest.mark.parametrize("name", sorted(GROUPS))
@pytest.mark.parametrize("turns", TURNS)
def test_another_replica_goes_on_whatever_step_of_a_change_its_leader_was_at(
    user: User, tmp_path: Path, name: str, turns: str
) -> None:
    mark = f"{name}-{turns}"
    with paired(user, tmp_path, TURNS[turns]) as service:
        began = time.time()
        steps = change(user, service, mark, GROUPS[name])
        service.settle()
        nothing_is_left(user.bed, mark)
    assert service.windows  # in some turn one was frozen
    late = [line for one in service.windows for line in one.written(user.bed)]
    assert late == []
    assert service.interruptions == tried(steps, GROUPS[name]), steps
    judged(user.bed, began)
