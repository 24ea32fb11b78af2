"""What the OpenAPI document says of tenants and their accounts."""

from __future__ import annotations

from typing import Final

from shadowprice.service.api.documents.route import (
    AMOUNTS,
    CURSOR,
    LIMIT,
    OPERATOR,
    TEXT,
    Document,
    page,
    query,
    route,
)

_BUDGET: Final[Document] = {
    "type": ["object", "null"],
    "required": ["points", "period"],
    "additionalProperties": False,
    "properties": {
        "points": {"type": "number", "minimum": 0, "maximum": 10**8},
        "period": {"type": "string", "examples": ["7d", "1d", "12h"]},
        "since": {"type": ["string", "null"], "format": "date-time"},
        "carry": {"oneOf": [{"type": "number", "minimum": 0}, {"const": "all"}]},
    },
}
_SUMS: Final[Document] = {
    "grant": 500.0,
    "expiry": 0.0,
    "debit": 62.5,
    "refund": 4.25,
    "payment": 0.0,
}
_ACCOUNT: Final[Document] = {
    "held": 441.75,
    "in_jobs": 20.5,
    "spent": 58.25,
    "begins": "2026-11-16T00:00:00.000Z",
    "ends": "2026-11-23T00:00:00.000Z",
    "sums": _SUMS,
}
_TENANT: Final[Document] = {
    "name": "vision",
    "share": {"worker": "4"},
    "jobs": {"running": 2},
    "budget": {
        "points": 500.0,
        "period": "7d",
        "since": "1970-01-05T00:00:00.000Z",
        "carry": 100.0,
    },
    "account": _ACCOUNT,
}
LIST_TENANTS: Final = route(page("tenants", {"type": "object"}), {"tenants": [_TENANT]})
PUT_TENANT: Final = route(
    {"type": "object"},
    _TENANT,
    body=(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"share": AMOUNTS, "budget": _BUDGET},
        },
        {"share": {"gpu": 4}, "budget": {"points": 500, "period": "7d", "carry": 100}},
    ),
    problems=OPERATOR,
)
GRANT: Final = route(
    {"type": "object"},
    _TENANT,
    status=201,
    body=(
        {
            "type": "object",
            "required": ["points"],
            "additionalProperties": False,
            "properties": {
                "points": {"type": "number", "exclusiveMinimum": 0, "maximum": 10**8},
                "note": {"type": "string", "maxLength": 200},
            },
        },
        {"points": 50, "note": "the paper's deadline"},
    ),
    problems=OPERATOR,
    described="given",
)
STATEMENT: Final = route(
    page("entries", {"type": "object"}),
    {
        "tenant": "vision",
        "budget": _TENANT["budget"],
        "account": _ACCOUNT,
        "opening": 0.0,
        "closing": 441.75,
        "sums": _SUMS,
        "entries": [
            {
                "id": 42,
                "at": "2026-11-22T09:00:12.349Z",
                "kind": "debit",
                "points": -8.5,
                "balance": 441.75,
                "job": "resnet50-a",
                "other": None,
                "note": "",
            }
        ],
        "next": None,
    },
    query=(
        query("since", TEXT, "from this moment on, like 2026-11-16T00:00:00Z"),
        query("until", TEXT, "before this moment"),
        query("back", {"type": "integer", "minimum": 0}, "one period: 0 the one that runs"),
        query("kind", TEXT, "grant, expiry, debit, refund, payment, with commas between them"),
        CURSOR,
        LIMIT,
    ),
    problems=(401, 404, 409, 422, 503),
)
REMOVE_TENANT: Final = route(None, status=204, problems=OPERATOR, described="removed")
