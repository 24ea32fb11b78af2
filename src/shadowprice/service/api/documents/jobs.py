"""What the OpenAPI document says of the routes of jobs."""

from __future__ import annotations

from typing import Final

from shadowprice.service.api.documents.job import JOB, JOB_SCHEMA, VIEW, VIEW_SCHEMA
from shadowprice.service.api.documents.route import (
    CHANGE,
    CURSOR,
    DURATION,
    LIMIT,
    OWN,
    TEXT,
    json_of,
    page,
    query,
    route,
)
from shadowprice.service.truth.submission import REVISABLE

SUBMIT: Final = route(
    {"oneOf": [VIEW_SCHEMA, page("jobs", {"type": "object"})]},
    VIEW,
    body=(
        {
            "oneOf": [
                JOB_SCHEMA,
                {
                    "type": "object",
                    "required": ["jobs"],
                    "additionalProperties": False,
                    "properties": {
                        "jobs": {"type": "array", "items": JOB_SCHEMA, "maxItems": 1000}
                    },
                },
            ]
        },
        JOB,
    ),
    query=(query("wait", {"type": "integer", "minimum": 0, "maximum": 60}, "seconds"),),
    problems=(400, 401, 403, 409, 413, 415, 422, 429, 500, 503),
    described="decided (one job)",
)
SUBMIT["responses"][202] = {
    "description": "accepted, to be decided on soon (several jobs)",
    "content": json_of(page("jobs", VIEW_SCHEMA), {"jobs": [VIEW | {"state": "pending"}]}),
}
LIST_JOBS: Final = route(
    page("jobs", VIEW_SCHEMA),
    {"jobs": [VIEW], "next": None},
    query=(
        query("state", TEXT, "states with commas between them"),
        query("tenant", TEXT, "whose"),
        CURSOR,
        LIMIT,
    ),
    problems=(401, 403, 422, 503),
)
GET_JOB: Final = route(VIEW_SCHEMA, VIEW | {"spec": JOB}, problems=OWN)
CANCEL: Final = route(VIEW_SCHEMA, VIEW | {"state": "cancelled"}, problems=CHANGE)
REVISE: Final = route(
    VIEW_SCHEMA,
    VIEW,
    body=(
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                "deadline": DURATION,
                **{key: JOB_SCHEMA["properties"][key] for key in REVISABLE},
            },
        },
        {"deadline": "6h"},
    ),
    problems=CHANGE,
)
_LINE: Final = "2026-11-22 09:00:12  admitted, promised by the end of slot 11"
_EVENT: Final = {
    "id": 42,
    "at": "2026-11-22T09:00:12.349Z",
    "kind": "admitted",
    "job": "resnet50-a",
    "tenant": "vision",
    "data": {"promise": 11, "payoff": 41.5, "utility": 50.0, "cost": 8.5},
}
EXPLAIN: Final = route(
    {
        "type": "object",
        "required": ["job", "broken_promise", "events", "left_out", "generations", "lines"],
        "properties": {
            "job": VIEW_SCHEMA,
            "broken_promise": {
                "type": ["object", "null"],
                "description": "why the first promise was not kept: seconds and share by cause",
                "required": ["promised", "late_seconds", "causes", "line"],
            },
            "events": {"type": "array", "items": {"type": "object"}},
            "left_out": {
                "type": ["object", "null"],
                "description": "how many entries of a long story are not here, and after which",
                "required": ["after", "events"],
                "properties": {"after": {"type": "integer"}, "events": {"type": "integer"}},
            },
            "generations": {"type": "array", "items": {"type": "object"}},
            "lines": {"type": "array", "items": TEXT, "description": "one an entry"},
        },
    },
    {
        "job": VIEW,
        "broken_promise": None,
        "events": [_EVENT],
        "left_out": None,
        "generations": [],
        "lines": [_LINE],
    },
    problems=OWN,
)
JOB_EVENTS: Final = route(
    page("events", {"type": "object"}),
    {"events": [_EVENT | {"line": _LINE}], "next": None},
    query=(CURSOR, LIMIT),
    problems=OWN,
)
GENERATIONS: Final = route(
    page("generations", {"type": "object"}),
    {
        "generations": [
            {
                "generation": 1,
                "slot": 1,
                "ordered": "2026-11-22T09:20:00.003Z",
                "started": "2026-11-22T09:20:00.120Z",
                "ended": None,
                "exit": None,
                "reason": None,
                "workers": 4,
                "ps": 0,
                "placement": [{"server": "gpu-0", "workers": 4, "ps": 0}],
            }
        ]
    },
    query=(LIMIT,),
    problems=OWN,
)
CURVE: Final = route(
    page("points", {"type": "object"}),
    {
        "points": [
            {
                "at": "2026-11-22T09:25:00.000Z",
                "generation": 1,
                "minibatches": 250.0,
                "metrics": {"loss": 0.71},
            }
        ]
    },
    query=(query("limit", {"type": "integer", "minimum": 1, "maximum": 5000}, "points"),),
    problems=OWN,
)
PROGRESS: Final = route(
    None,
    status=202,
    body=(
        {
            "type": "object",
            "required": ["minibatches"],
            "properties": {
                "generation": {"type": "integer"},
                "minibatches": {"type": "number", "minimum": 0},
                "metrics": {"type": "object", "additionalProperties": {"type": "number"}},
            },
        },
        {"minibatches": 1250, "metrics": {"loss": 0.31}},
    ),
    problems=(400, 401, 403, 413, 415, 422, 503),
    described="taken",
)
PROGRESS["openapi_extra"]["security"] = [{"progress": []}]
LOGS: Final = route(
    {"type": "object"},
    {
        "generation": 1,
        "process": "worker-0",
        "start": 0,
        "end": 14,
        "text": "epoch 1 of 10\n",
        "complete": False,
    },
    query=(
        query("generation", {"type": "integer", "minimum": 1}, "by default the newest"),
        query("process", TEXT, "such as worker-0"),
        query("start", {"type": "integer", "minimum": 0}, "first byte"),
        query("most", {"type": "integer", "minimum": 1, "maximum": 1048576}, "bytes"),
    ),
    problems=(401, 404, 409, 422, 503),
)
QUOTE: Final = route(
    {"type": "object"},
    {
        "job": "resnet50-a",
        "slot": 1,
        "answer": "admitted",
        "admitted": True,
        "completion": 11,
        "promise": "2026-11-22T12:40:00.000Z",
        "utility": 50.0,
        "price": 8.5,
        "points": {"held": 450.25, "left": 441.75},
    },
    body=(JOB_SCHEMA, {key: value for key, value in JOB.items() if key != "run"}),
    problems=(400, 401, 403, 409, 413, 415, 422, 503),
)
