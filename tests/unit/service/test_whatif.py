"""The files of what-if simulations."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shadowprice.service.queries.whatif import WhatIfRunner


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
