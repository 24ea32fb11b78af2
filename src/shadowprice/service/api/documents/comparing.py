"""What the OpenAPI document says of the comparison with what really runs."""

from __future__ import annotations

from typing import Final

from shadowprice.service.api.documents.route import CURSOR, LIMIT, page, query, route

COMPARISON: Final = route(
    {"type": "object", "required": ["days", "jobs", "would", "real", "both", "promises", "use"]},
    {
        "days": 7.0,
        "looked": "2026-11-22T09:00:10.000Z",
        "incomplete": False,
        "jobs": 12,
        "withdrawn": 1,
        "would": {
            "utility": 410.0,
            "finished": 9,
            "running": 1,
            "waiting": 1,
            "refused": 1,
            "failed": 0,
        },
        "real": {
            "utility": 355.5,
            "finished": 8,
            "running": 2,
            "waiting": 2,
            "failed": 0,
            "taken_for_done": 8,
            "worth_unknown": 0,
        },
        "both": {"jobs": 8, "would_seconds": 5400.0, "real_seconds": 7260.5},
        "promises": {"jobs": 8, "real_in_time": 5},
        "only_seen": {"jobs": 0, "newest": []},
        "use": {
            "first": 0,
            "would": [0.5, 0.75],
            "real": [0.5, 0.5],
            "unknown_jobs": 0,
            "unknown_servers": [],
            "incomplete": False,
        },
    },
    query=(query("days", {"type": "number", "exclusiveMinimum": 0}, "how far to look back"),),
    problems=(401, 409, 422, 503),
)
COMPARED_JOBS: Final = route(
    page("jobs", {"type": "object", "required": ["name", "would", "real", "gain"]}),
    {
        "jobs": [
            {
                "name": "resnet50-a",
                "tenant": "vision",
                "submitted": "2026-11-22T09:00:12.345Z",
                "would": {
                    "state": "finished",
                    "started": "2026-11-22T09:20:00.000Z",
                    "promise": "2026-11-22T12:40:00.000Z",
                    "completion": "2026-11-22T12:40:00.000Z",
                    "utility": 50.0,
                    "reason": None,
                },
                "real": {
                    "state": "ended",
                    "started": "2026-11-22T10:05:07.000Z",
                    "completion": "2026-11-22T13:31:40.000Z",
                    "utility": 41.0,
                    "runs": 1,
                },
                "gain": 9.0,
            }
        ],
        "next": None,
    },
    query=(CURSOR, LIMIT),
    problems=(401, 409, 422, 503),
)
