"""Reports from a job's progress file."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from shadowprice.executors.contract import InvalidProgress
from shadowprice.executors.generations.generation import GenerationDirectory
from shadowprice.executors.generations.registry import TrackedGeneration


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


def test_a_report_that_was_read_while_it_was_written_is_read_again(tmp_path: Path) -> None:
    entry = TrackedGeneration("job", 1, GenerationDirectory(tmp_path))
    entry.progress.write_text("")
    os.utime(entry.progress, (5, 5))
    assert entry.poll_progress() is None
    entry.progress.write_text('{"generation": 1, "minibatches": 7}')
    os.utime(entry.progress, (5, 5))  # within one tick of the file system's clock
    report = entry.poll_progress()
    assert report is not None
    assert report.progress == 7_000_000


@pytest.mark.parametrize("modified", [2**34, -(2**35)])
def test_a_job_cannot_date_its_progress(tmp_path: Path, modified: int) -> None:
    """Later than a database stores, or before the job began."""
    entry = TrackedGeneration("job", 1, GenerationDirectory(tmp_path))
    started = entry.state["started"] = time.time() - 100.0
    entry.progress.write_text('{"generation": 1, "minibatches": 7}')
    try:
        os.utime(entry.progress, (modified, modified))
    except OverflowError:
        pytest.skip("the file system has no such times")
    report = entry.poll_progress()
    assert report is not None
    assert started <= report.at <= time.time()


def test_a_progress_file_that_is_too_long_is_named_so(tmp_path: Path) -> None:
    entry = TrackedGeneration("job", 1, GenerationDirectory(tmp_path))
    entry.progress.write_text('{"generation": 1, "minibatches": 7}' + " " * 65_536)
    assert [entry.poll_progress() for _ in range(2)] == [None, None]
    [report] = entry.pop_reports()
    assert isinstance(report, InvalidProgress)
    assert report.reason == "its progress file exceeds 65,536 bytes"
