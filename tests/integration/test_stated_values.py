"""The warning of a service whose tenants could outbid each other with values that cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.services import run_service

TRUSTED = "tenants have no budget"


@pytest.mark.parametrize(
    ("tenants", "policy", "more", "warns"),
    [
        (("vision", "speech"), "rolling", {"values": "stated"}, True),
        (("vision", "speech"), "rolling", {}, False),
        (("vision", "speech"), "fifo", {"values": "stated"}, False),
        (("vision",), "rolling", {"values": "stated"}, False),
        ((), "rolling", {"values": "stated"}, False),
    ],
)
def test_a_service_warns_of_values_that_cost_nothing(
    tenants: tuple[str, ...],
    policy: str,
    more: dict[str, Any],
    warns: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with run_service(tmp_path, policy=policy, **more) as service:
        for tenant in tenants:
            service.token(tenant)
    caplog.clear()
    with run_service(tmp_path, policy=policy, **more):
        pass
    assert any(TRUSTED in record.getMessage() for record in caplog.records) is warns
