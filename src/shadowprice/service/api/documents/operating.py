"""What the OpenAPI document says of the service itself."""

from __future__ import annotations

from typing import Final

from shadowprice.service.api.documents.route import TEXT, json_of, route

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
