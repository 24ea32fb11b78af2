"""Random calls, with restarts and passing time, against a small model of the state.

``make test SUITE=fuzz-api`` runs it, with ``API_EXAMPLES`` examples.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.api_machine import EXAMPLES, ApiMachine

pytestmark = pytest.mark.skipif(not EXAMPLES, reason="runs in make test SUITE=fuzz-api")


TestApi = ApiMachine.TestCase
TestApi.settings = settings(
    max_examples=EXAMPLES or 1,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
