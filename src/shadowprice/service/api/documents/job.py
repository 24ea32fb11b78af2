"""A job, as it is submitted and as it is answered."""

from __future__ import annotations

from typing import Final

from shadowprice.core.utility import FAMILIES
from shadowprice.service.api.documents.route import (
    AMOUNT,
    AMOUNTS,
    COUNT,
    DURATION,
    NUMBER,
    TEXT,
    TIME,
    Document,
)

JOB: Final[Document] = {
    "name": "resnet50-a",
    "tenant": "vision",
    "epochs": 10,
    "chunks": 4,
    "minibatches": 100,
    "minibatch_time": "1.2s",
    "worker": {"gpu": 1, "cpu": 4, "memory": "16GiB"},
    "utility": {"kind": "deadline", "value": 50, "by": "4h"},
    "run": {"command": ["python", "train.py"], "retries": 2, "grace": "30s"},
}
VIEW: Final[Document] = {
    "id": 17,
    "name": "resnet50-a",
    "tenant": "vision",
    "state": "running",
    "submitted": "2026-11-22T09:00:12.345Z",
    "decided": "2026-11-22T09:00:12.349Z",
    "started": "2026-11-22T09:20:00.120Z",
    "promise": "2026-11-22T12:40:00.000Z",
    "promise_slot": 11,
    "first_promise_slot": 11,
    "completion": "2026-11-22T12:40:00.000Z",
    "completion_slot": 11,
    "closed": None,
    "progress": 1250.0,
    "required": 4000.0,
    "generation": 1,
    "workers": 4,
    "ps": 0,
    "servers": ["gpu-0"],
    "payoff": 41.5,
    "utility": 50.0,
    "cost": 8.5,
    "reason": None,
    "failures": 0,
    "lost": 0,
    "points": {"price": 8.5, "used": 2.75, "refund": None, "planned": 40, "held": 13},
}
_STATES: Final = [
    "pending",
    "admitted",
    "standby",
    "running",
    "resizing",
    "finished",
    "refused",
    "failed",
    "cancelled",
]
JOB_SCHEMA: Final[Document] = {
    "type": "object",
    "required": ["name", "worker", "utility"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 200},
        "tenant": {"type": ["string", "null"], "maxLength": 200},
        "epochs": {"type": "integer", "minimum": 1},
        "chunks": {"type": "integer", "minimum": 1},
        "minibatches": {"type": "integer", "minimum": 1},
        "minibatch_time": DURATION,
        "update_time": DURATION,
        "gradient": AMOUNT,
        "worker": AMOUNTS,
        "ps": AMOUNTS,
        "internal_bandwidth": AMOUNT,
        "utility": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"enum": list(FAMILIES)}},
        },
        "workers": {
            "type": "object",
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
        },
        "throughput": {"type": "object", "additionalProperties": {"type": "number"}},
        "family": {"type": "string", "minLength": 1, "maxLength": 200},
        "labels": {"type": "object", "additionalProperties": TEXT},
        "restart": DURATION,
        "priority": {"type": "number"},
        "walltime": DURATION,
        "run": {
            "type": "object",
            "required": ["command"],
            "properties": {
                "command": {"oneOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]},
                "env": {"type": "object", "additionalProperties": TEXT},
                "workdir": TEXT,
                "retries": {"type": "integer", "minimum": 0},
                "grace": DURATION,
                "tolerates": {"enum": ["nothing", "workers"]},
                "user": {"type": ["string", "null"], "maxLength": 32},
                "image": {"type": ["string", "null"], "maxLength": 4000},
                "pod": {"type": ["object", "null"]},
            },
        },
    },
}
VIEW_SCHEMA: Final[Document] = {
    "type": "object",
    "required": ["name", "tenant", "state", "promise", "progress", "required", "generation"],
    "properties": {
        "id": {"type": "integer"},
        "name": TEXT,
        "tenant": {"type": ["string", "null"]},
        "state": {"enum": _STATES},
        **dict.fromkeys(
            ("submitted", "decided", "started", "promise", "completion", "closed"), TIME
        ),
        **dict.fromkeys(("promise_slot", "first_promise_slot", "completion_slot"), COUNT),
        "progress": {"type": "number", "description": "mini-batches"},
        "required": {"type": "number", "description": "mini-batches"},
        "generation": {"type": "integer"},
        "workers": {"type": "integer"},
        "ps": {"type": "integer"},
        "servers": {"type": "array", "items": TEXT},
        **dict.fromkeys(("payoff", "utility", "cost"), NUMBER),
        "reason": {"type": ["object", "null"]},
        "failures": {
            "type": "integer",
            "description": "generations that failed, those that were lost among them",
        },
        "lost": {
            "type": "integer",
            "description": "generations that were lost through no fault of the job",
        },
        "points": {
            "type": ["object", "null"],
            "description": "what it costs its tenant, where that has a budget: the price it was "
            "admitted for, what it used of it, what came back; places times slots",
        },
        "speed": {
            "type": "object",
            "properties": {
                "from": {"enum": ["stated", "family"]},
                "family": {"type": ["string", "null"]},
                "measured": {"type": "array", "items": {"type": "integer"}},
            },
        },
        "spec": {"type": "object"},
    },
}
