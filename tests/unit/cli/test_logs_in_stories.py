"""The last lines of a log, in a job's history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shadowprice.cli.commands.explain import _with_log
from shadowprice.cli.commands.queue import squeue_rows
from shadowprice.cli.commands.submit import describe_job, print_job
from shadowprice.client import Job
from shadowprice.service.queries.event_text import format_event
from shadowprice.service.state.job_views import JobView, State

WHY = 'worker-0 exited 1\nTraceback:\n  File "a", line 1\n\nValueError: \x1b[31mno'


def _job(why: str, **more: Any) -> Job:
    view = JobView(1, "j", "j", None, State.FAILED, 0, 0, required=10.0)
    reason = {"code": "failed", "message": why}
    return replace(view, reason=reason, **more).to_resource()


@pytest.mark.parametrize("kind", ["failed", "retrying", "ended"])
def test_each_line_of_a_log_is_a_line_of_the_history(kind: str) -> None:
    line = format_event(kind, {"generation": 1, "code": 1, "reason": WHY})
    first, *log = _with_log(line, WHY)
    assert first.endswith(": worker-0 exited 1")
    assert log == ["Traceback:", '  File "a", line 1', "ValueError: \x1b[31mno"]


@pytest.mark.parametrize("why", ["", "no room", "another\nreason"])
def test_a_line_without_a_log_stays(why: str) -> None:
    assert _with_log("refused: no room", why) == ["refused: no room"]


def test_lists_show_the_cause_and_the_job_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    from datetime import UTC, datetime

    job = _job(WHY)
    assert squeue_rows([job], datetime.now(UTC))[0][-1] == "(worker-0 exited 1)"
    assert dict(describe_job(job))["reason"] == "worker-0 exited 1"
    print_job(job)
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = next(number for number, line in enumerate(said) if line.startswith("log ends"))
    assert said[at].endswith("Traceback:")
    assert said[at + 1].strip() == 'File "a", line 1'
    assert said[at + 2].strip() == r"ValueError: \x1b[31mno"
    print_job(job, log=False)
    assert "Traceback" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("failures", "lost", "message"),
    [
        (0, 0, ("", "")),
        (1, 1, ("", "once, not caused by the job")),
        (3, 2, (1, "2 times, not caused by the job")),
    ],
)
def test_a_loss_is_no_failure_of_the_job(
    failures: int, lost: int, message: tuple[object, str]
) -> None:
    result = dict(describe_job(_job("", failures=failures, lost=lost)))
    assert (result["failures"], result["lost"]) == message


@pytest.mark.parametrize(
    ("cost", "worth"), [(None, "0.8333"), (0.25, "0.8333, for 0.25: payoff 0.5833")]
)
def test_a_job_that_ran_without_a_price_has_no_payoff(cost: float | None, worth: str) -> None:
    payoff = None if cost is None else 5 / 6 - cost
    job = _job("", utility=5 / 6, cost=cost, payoff=payoff)
    assert dict(describe_job(job))["worth"] == worth
