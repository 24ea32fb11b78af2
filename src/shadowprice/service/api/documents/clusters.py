"""What the OpenAPI document says of servers and tokens."""

from __future__ import annotations

from typing import Final

from shadowprice.service.api.documents.route import (
    AMOUNTS,
    DURATION,
    OPERATOR,
    TEXT,
    Document,
    page,
    route,
)

_SERVER: Final[Document] = {
    "name": "gpu-0",
    "role": "any",
    "state": "up",
    "capacity": {"gpu": "8", "cpu": "32"},
    "jobs": [{"job": "resnet50-a", "workers": 4, "ps": 0}],
}
_SERVER_SCHEMA: Final[Document] = {
    "type": "object",
    "required": ["name", "capacity"],
    "additionalProperties": False,
    "properties": {
        "name": TEXT,
        "count": {"type": "integer", "minimum": 1},
        "role": {"enum": ["worker", "ps", "any"]},
        "capacity": AMOUNTS,
        "cost": {"type": "number", "minimum": 0},
    },
}
LIST_SERVERS: Final = route(
    page("servers", {"type": "object"}),
    {
        "servers": [_SERVER],
        "slot": {
            "seconds": 1200.0,
            "horizon": 300,
            "running": 0,
            "coming": 1,
            "coming_begins": "2026-11-22T09:20:00.000Z",
        },
    },
)
ADD_SERVERS: Final = route(
    page("servers", {"type": "object"}),
    {"servers": [_SERVER]},
    status=201,
    body=(_SERVER_SCHEMA, {"name": "gpu", "count": 2, "capacity": {"gpu": 8, "cpu": 32}}),
    problems=OPERATOR,
    described="added",
)
CHANGE_SERVER: Final = route(
    {"type": "object"},
    _SERVER | {"state": "drained"},
    body=(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "drain": {"type": "boolean"},
                "capacity": AMOUNTS,
                "role": {"enum": ["worker", "ps", "any"]},
                "cost": {"type": "number", "minimum": 0},
            },
        },
        {"drain": True},
    ),
    problems=OPERATOR,
)
REMOVE_SERVER: Final = route(None, status=204, problems=OPERATOR, described="removed")
_TOKEN: Final[Document] = {
    "id": 2,
    "role": "tenant",
    "tenant": "vision",
    "note": "ci",
    "expires": "2027-02-20T09:00:00.000Z",
}
LIST_TOKENS: Final = route(
    page("tokens", {"type": "object"}), {"tokens": [_TOKEN]}, problems=(401, 403, 422, 503)
)
CREATE_TOKEN: Final = route(
    {"type": "object"},
    _TOKEN | {"token": "sp_..."},
    status=201,
    body=(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "role": {"enum": ["operator", "tenant"]},
                "tenant": {"type": ["string", "null"]},
                "expires": {**DURATION, "type": ["string", "null"]},
                "note": {"type": "string", "maxLength": 200},
            },
        },
        {"role": "tenant", "tenant": "vision", "expires": "90d", "note": "ci"},
    ),
    problems=OPERATOR,
    described="made; the token is shown this once",
)
REVOKE_TOKEN: Final = route(None, status=204, problems=OPERATOR, described="revoked")
