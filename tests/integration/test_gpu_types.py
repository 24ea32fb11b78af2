"""The example of types of GPU in the documentation, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from shadowprice.cli.main import main
from shadowprice.results.run_directory import read_run

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.mark.parametrize("policy", ["oasis", "drf", "las", "backfill"])
def test_jobs_stand_on_servers_of_their_type_and_pay_for_them(
    tmp_path: Path, policy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.read_text().partition("### Types of GPU, and money")[2].partition("\n## ")[0]
    cluster, jobs = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "c.yaml").write_text(cluster)
    (tmp_path / "j.yaml").write_text(jobs)
    files = ("-c", str(tmp_path / "c.yaml"), "-j", str(tmp_path / "j.yaml"))
    assert main(("simulate", *files, "-p", policy, "--out", str(tmp_path / "run"), "-q")) == 0
    assert "utility per cost used" in capfd.readouterr().out
    run = read_run(tmp_path / "run")
    assert set(run.jobs["outcome"]) == {"finished"}
    stood = run.allocations.group_by("job").agg(pl.col("server").unique())
    names = {job: {run.server_names[at][:3] for at in servers} for job, servers in stood.rows()}
    assert names == {"resnet-v100": {"new"}, "resnet-k80": {"old"}}
    for job, cost, worker_slots in run.jobs.select("job", "cost", "worker_slots").rows():
        price = {"resnet-v100": 24.48 / 8, "resnet-k80": 3.60 / 4}[job]
        assert cost == pytest.approx(worker_slots * price)
