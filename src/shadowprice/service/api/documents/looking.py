"""What the OpenAPI document says of prices, the timeline, decisions, events and what-if runs."""

from __future__ import annotations

from typing import Final

from shadowprice.service.api.documents.route import (
    CURSOR,
    LIMIT,
    TEXT,
    Document,
    page,
    query,
    route,
)

PRICES: Final = route(
    {"type": "object"},
    {
        "priced": True,
        "policy": "rolling",
        "kinds": [{"name": "gpu", "servers": ["gpu-0", "gpu-1"], "role": "any"}],
        "slots": [
            {
                "slot": 1,
                "begins": "2026-11-22T09:20:00.000Z",
                "kinds": {"gpu": {"gpu": {"used": 0.5, "price": 1.25}}},
            }
        ],
    },
    query=(query("slots", {"type": "integer", "minimum": 1, "maximum": 1000}, "how many"),),
)
PRICE_HISTORY: Final = route(
    {"type": "object"},
    {
        "slots": [
            {
                "slot": 1,
                "begins": "2026-11-22T09:20:00.000Z",
                "kinds": {"gpu": {"gpu": {"used": 0.5, "price": 1.25}}},
            }
        ],
    },
    query=(
        query("back", {"type": "integer", "minimum": 1, "maximum": 10**9}, "slots of past"),
        LIMIT,
    ),
)
TIMELINE: Final = route(
    {
        "type": "object",
        "required": ["slot_seconds", "origin", "now", "first", "last", "servers", "bars"],
        "properties": {
            "levels": {
                "type": "string",
                "description": "base64: a byte a slot, from `first` to before `last`, server after "
                "server: the used share of the scarcest resource, 255 for all of it",
            },
            "bars": {
                "type": ["object", "null"],
                "description": "columns; `job` counts into `jobs`, `what` is 0 for what ran, 1 "
                "for what is planned, 2 for what goes on if nothing moves; null where there are "
                "more than 4,000: ask for one server or job",
            },
            "promises": {
                "type": ["array", "null"],
                "description": "[job, promised slot] of jobs that have no place yet",
            },
        },
    },
    {
        "slot_seconds": 1200.0,
        "origin": "2026-11-22T09:00:00.000Z",
        "now": 1.25,
        "first": 0,
        "last": 26,
        "running": 1,
        "coming": 2,
        "servers": ["gpu-0"],
        "incomplete": False,
        "levels": "gP8=",
        "jobs": [{"job": "resnet50-a", "tenant": "vision", "state": "running"}],
        "bars": {
            "job": [0],
            "server": ["gpu-0"],
            "from": [0.0],
            "to": [1.25],
            "workers": [4],
            "ps": [0],
            "what": [0],
            "share": [0.5],
        },
        "promises": [],
    },
    query=(
        query("back", {"type": "integer", "minimum": 0, "maximum": 1000}, "slots of past"),
        query("slots", {"type": "integer", "minimum": 1, "maximum": 1000}, "slots of future"),
        query("server", TEXT, "of one server"),
        query("job", TEXT, "of one job"),
        query("real", {"type": "boolean"}, "what was seen to run, where the service only observes"),
    ),
    problems=(401, 404, 409, 422, 503),
)
DECISIONS: Final = route(
    page("decisions", {"type": "object"}),
    {
        "decisions": [
            {
                "id": 42,
                "at": "2026-11-22T09:00:12.349Z",
                "kind": "admitted",
                "job": "resnet50-a",
                "tenant": "vision",
                "data": {"promise": 11, "payoff": 41.5, "utility": 50.0, "cost": 8.5},
            }
        ],
        "next": None,
    },
    query=(
        query("job", TEXT, "of one job"),
        query("tenant", TEXT, "whose"),
        CURSOR,
        LIMIT,
    ),
    problems=(401, 403, 422, 503),
)
EVENTS: Final = route(
    None,
    query=(query("after", {"type": "integer", "minimum": 0}, "as Last-Event-ID"),),
    problems=(401, 422, 429, 503),
    described="a stream of server-sent events",
)
EVENTS["responses"][200]["content"] = {
    "text/event-stream": {
        "schema": TEXT,
        "example": 'id: 42\nevent: admitted\ndata: {"id":42,"kind":"admitted",...}\n\n',
    }
}
_WHATIF: Final[Document] = {
    "id": 1,
    "asked": "2026-11-22T09:00:00.000Z",
    "state": "done",
    "progress": {"done": 2, "of": 2},
    "jobs": 400,
    "question": {"days": 7.0, "servers": {"gpu": 2}, "policy": "rolling", "set": {}},
    "as_is": {"policy": "rolling", "total_utility": 1200.5},
    "changed": {"policy": "rolling", "total_utility": 1310.0},
    "gain": 109.5,
}
ASK_WHATIF: Final = route(
    {"type": "object"},
    _WHATIF | {"state": "waiting"},
    status=202,
    body=(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "days": {"type": "number", "exclusiveMinimum": 0},
                "servers": {"type": "object", "additionalProperties": {"type": "integer"}},
                "policy": TEXT,
                "set": {"type": "object"},
            },
        },
        {"days": 7, "servers": {"gpu": 2}},
    ),
    problems=(400, 401, 403, 409, 413, 415, 422, 429, 503),
    described="begun",
)
LIST_WHATIF: Final = route(
    page("runs", {"type": "object"}), {"runs": [_WHATIF]}, problems=(401, 403, 422, 503)
)
GET_WHATIF: Final = route({"type": "object"}, _WHATIF, problems=(401, 403, 404, 422, 503))
CANCEL_WHATIF: Final = route(
    {"type": "object"}, _WHATIF | {"state": "cancelled"}, problems=(401, 403, 404, 422, 503)
)
