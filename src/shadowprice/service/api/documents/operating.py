"""What the OpenAPI document says of the service itself."""

from __future__ import annotations

from typing import Final

from shadowprice.service.api.documents.route import OPERATOR, TEXT, Document, json_of, route

HEALTH: Final = route(
    {"type": "object"}, {"status": "ok"}, problems=(), open_=True, described="it answers"
)
READY: Final = route(
    {"type": "object"}, {"status": "ready"}, problems=(), open_=True, described="it works"
)
READY["responses"][503] = {
    "description": "it stands by, or cannot work",
    "content": json_of({"type": "object"}, {"status": "standby"}),
}
METRICS: Final = route(None, problems=(401, 403, 422, 503), described="measures")
METRICS["responses"][200]["content"] = {"text/plain": {"schema": TEXT}}
SERVICE: Final = route(
    {"type": "object"},
    {"version": "1.0", "policy": "rolling", "executor": "local", "slot_seconds": 1200.0},
)
_TIMESPAN: Final[Document] = {
    "until": "2026-11-22T18:00:00.000Z",
    "ends": "2026-11-22T18:00:00.000Z",
    "slot": 27,
    "ended": False,
}
TIMESPAN: Final = route({"type": "object"}, _TIMESPAN)
CHANGE_TIMESPAN: Final = route(
    {"type": "object"},
    _TIMESPAN,
    body=(
        {
            "type": "object",
            "required": ["until"],
            "additionalProperties": False,
            "properties": {
                "until": {
                    "type": ["string", "null"],
                    "description": "a span from now (6h, 20 slots), the next clock time (18:00), "
                    "or a date with or without a time; null removes the end",
                }
            },
        },
        {"until": "2026-11-22T18:00:00Z"},
    ),
    problems=OPERATOR,
)
