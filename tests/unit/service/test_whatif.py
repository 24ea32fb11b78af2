"""The files of what-if simulations."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shadowprice import rest
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.problems import ProblemError
from shadowprice.service.queries.whatif import WhatIfRequest, WhatIfRunner
from tests.support.simulated_hours import CLUSTER


def test_an_instance_that_closes_deletes_no_files_of_another(tmp_path: Path) -> None:
    """Two instances of a service may run in one directory, a leader and its standby."""
    folder = tmp_path / "whatif"
    kept = folder / "as-is-leader" / "jobs.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    asyncio.run(WhatIfRunner(folder).close())
    assert kept.exists()
    kept.unlink()
    kept.parent.rmdir()
    asyncio.run(WhatIfRunner(folder).close())
    assert not folder.exists()


@pytest.mark.parametrize(("days", "span"), [(1, "day"), (2, "2 days"), (0.5, "0.5 days")])
def test_a_time_without_jobs_is_named(tmp_path: Path, days: float, span: str) -> None:
    choice = PolicyChoice("fifo", {})
    at = datetime.fromtimestamp(0, UTC)
    question = rest.WhatIfQuestion(days=days, at=at, servers={}, policy="fifo", set={})
    request = WhatIfRequest(question, choice, 0)
    with pytest.raises(ProblemError, match=f"no job was submitted in the last {span}$"):
        WhatIfRunner(tmp_path).start(request, CLUSTER, [], choice, 0)
