"""Text of the events of a job history."""

from __future__ import annotations

from typing import Any

import pytest

from shadowprice.service.queries.event_text import format_event


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("submitted", {}, "submitted"),
        ("finished", {"kept": True, "utility": 2.5}, "finished, as promised; earned 2.5"),
        ("finished", {"kept": None, "utility": None}, "finished"),
        ("running", {"generation": 2}, "generation 2 runs"),
        ("stopped", {"slot": 7, "generation": 2}, "generation 2 stopped from slot 7 on"),
        (
            "retrying",
            {"generation": 1, "code": 3, "reason": "worker-0 exited 3\n  loading\n\noops\n"},
            "generation 1 failed and is retried: worker-0 exited 3 | loading | oops",
        ),
        ("failed", {"generation": 2, "code": 3, "reason": ""}, "failed with generation 2"),
        (
            "repeated",
            {"generation": 2, "steps": 1.0, "saved": False},
            (
                "generation 2 starts behind the reported progress: 1 mini-batch is repeated, "
                "nothing was saved"
            ),
        ),
        (
            "lost",
            {"generation": 1, "reason": "the machine was started again"},
            "generation 1 was lost; the job is not to blame: the machine was started again",
        ),
        (
            "start-failed",
            {"generation": 1, "reason": "no such user"},
            "generation 1 could not be started: no such user",
        ),
        (
            "ended",
            {"generation": 1, "code": 143, "reason": "stopped\nbye \x1b[31m"},
            "generation 1 ended with status 143: stopped | bye \\x1b[31m",
        ),
        ("ended", {"generation": 1, "code": None, "reason": ""}, "generation 1 ended"),
        (
            "misreported",
            {"generation": 2, "reason": "it is not a count"},
            "generation 2 sends an invalid progress report, which is ignored: it is not a count",
        ),
        (
            "misreported",
            {"generation": 2, "reason": "left out: progress.metrics.'a': 'b' is not a number"},
            (
                "generation 2 sends progress reports with invalid parts, left out: "
                "progress.metrics.'a': 'b' is not a number"
            ),
        ),
        ("standby", {"message": "waits its turn"}, "waits its turn"),
        ("standby", {"message": "no room"}, "waits: no room"),
        ("revised", {"changes": {"utility": 1, "epochs": 2}}, "revised: utility, epochs"),
        (
            "rescheduled",
            {"seconds": -90.0, "why": "the clock was set back"},
            "promise is 90 s earlier on the clock: the clock was set back",
        ),
        (
            "remeasured",
            {"restart": 12.5},
            "measured: a move costs 12.5 s; planned by that from now on",
        ),
        (
            "remeasured",
            {"workers": 2, "factor": 0.5},
            "measured with 2 workers: 0.5 times the expected speed; planned by that from now on",
        ),
        (
            "admitted",
            {"promise": 9, "utility": 12.5, "cost": 3.0},
            "admitted, promised by the end of slot 9, utility 12.5 at cost 3",
        ),
        (
            "broken",
            {"before": 4, "reason": "servers were lost"},
            "promise for slot 4 withdrawn: servers were lost",
        ),
        (
            "moved",
            {"before": 4, "promise": 6, "reason": {"message": "servers were lost"}},
            "promise moved from slot 4 to slot 6: servers were lost",
        ),
        (
            "moved",
            {"before": None, "promise": 473, "first": 4, "reason": ""},
            "has a promise again, by the end of slot 473: its remaining work fits again",
        ),
        (
            "moved",
            {"before": None, "promise": 473, "first": 4, "reason": "servers are back"},
            "has a promise again, by the end of slot 473: servers are back",
        ),
        ("new-kind", {"a": 1, "reason": "why"}, 'new-kind {"a": 1}: why'),
        ("new", {"a": 2500001.0, "b": [0.123456789]}, 'new {"a": 2500001.0, "b": [0.123457]}'),
        ("new", {"a": 1234567.25, "b": -999999.75}, 'new {"a": 1234567.25, "b": -1000000.0}'),
    ],
)
def test_lines_are_sentences(kind: str, data: dict[str, Any], expected: str) -> None:
    assert format_event(kind, data) == expected
