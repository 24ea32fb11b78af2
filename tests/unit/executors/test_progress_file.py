"""What is made of a job's file of progress."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from shadowprice.executors.contract import InvalidProgress
from shadowprice.executors.generations.generation import GenerationDirectory
from shadowprice.executors.generations.tracked_generation import TrackedGeneration


def test_a_job_is_not_blamed_where_the_service_has_no_file_left(tmp_path: Path) -> None:
    entry = TrackedGeneration("job", 1, GenerationDirectory(tmp_path))
    entry.progress.write_text('{"generation": 1, "minibatches": 7}')
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        looks = [entry.poll_progress() for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert looks == [None] * 3
    assert entry.pop_reports() == []
    result = entry.poll_progress()
    assert result is not None
    assert result.progress == 7_000_000


def test_a_link_in_the_place_of_a_progress_file_is_reported(tmp_path: Path) -> None:
    entry = TrackedGeneration("job", 1, GenerationDirectory(tmp_path))
    entry.progress.symlink_to(os.devnull)
    assert [entry.poll_progress() for _ in range(2)] == [None, None]
    [report] = entry.pop_reports()
    assert isinstance(report, InvalidProgress)
    assert "a link" in report.reason
