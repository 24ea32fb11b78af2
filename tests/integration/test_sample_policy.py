"""The sample policy of the documentation is shown, runs, and passes the tests of every policy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from tests.support.sample_policy import NAME, SAMPLE, installed
from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

REQUIRED_TESTS = {
    "test_a_policy_that_raises_fails_the_event_and_nothing_else",
    "test_every_policy_accepts_the_preset_of_its_paper",
    "test_every_policy_decides_by_the_values_alone",
    "test_every_policy_runs_live_with_defaults",
    "test_policies_follow_jobs_that_are_revised",
    "test_policies_follow_servers_that_change",
    "test_restarts_at_every_event_change_nothing",
    "test_a_run_from_a_pause_equals_a_whole_run",
    "test_every_refusal_has_true_advice_or_none_exists",
}
"""Some of the tests that every policy must pass."""


def test_the_page_shows_the_sample() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"```python title=\"policy.py\"\n(.*?)```", page, re.DOTALL)
    assert shown == SAMPLE.read_text(encoding="utf-8")
    assert len(shown.splitlines()) <= 60


def test_the_sample_runs_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("-c", str(EXAMPLES / "cluster.yaml"), "-j", str(EXAMPLES / "jobs.yaml"))
    with installed():
        status = main(("simulate", *files, "-p", NAME, "-q", "-o", "json"))
    out, err = capsys.readouterr()
    assert status == 0, err
    record = json.loads(out)
    summary = record.get("summary", record)
    assert summary["jobs"] == summary["admitted"] == summary["finished"] == 5


@pytest.mark.extended
@pytest.mark.long
def test_sample_policy_passes_the_checks_of_every_policy() -> None:
    paths = ("tests/properties", "tests/unit/policies", "tests/integration/test_new_families.py")
    words = ("-p", "tests.support.sample_policy", "-k", NAME, "-vv", "-n", "0", *paths)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    passed = re.findall(rf"::(test_\w+)\[[^]]*{NAME}[^]]*\] PASSED", done.stdout)
    assert set(passed) >= REQUIRED_TESTS
