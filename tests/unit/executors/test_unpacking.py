"""The list of the jobs whose files were unpacked."""

from __future__ import annotations

from pathlib import Path

from shadowprice.executors.generations.store import UnpackedJobs


def test_jobs_can_be_added_and_removed_while_they_are_iterated(tmp_path: Path) -> None:
    jobs = UnpackedJobs(tmp_path / "unpacked")
    for name in ("a", "b"):
        jobs.add(name, "archive", tmp_path / name)
    seen = []
    for name in jobs.jobs():
        seen.append(name)
        jobs.remove(name)
        jobs.add(f"{name}{name}", "archive", tmp_path / name)
    assert seen == ["a", "b"]
    assert set(UnpackedJobs(tmp_path / "unpacked").jobs()) == {"aa", "bb"}
