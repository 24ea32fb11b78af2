"""What the OpenAPI document says of each route: bodies, answers, examples."""

from __future__ import annotations

from typing import Any, Final

from shadowprice.service.submission import REVISABLE

Document = dict[str, Any]

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

_TEXT: Final[Document] = {"type": "string"}
_TIME: Final[Document] = {"type": ["string", "null"], "format": "date-time"}
_COUNT: Final[Document] = {"type": ["integer", "null"]}
_NUMBER: Final[Document] = {"type": ["number", "null"]}
_AMOUNT: Final[Document] = {"type": ["string", "number"], "description": "with its unit: 16GiB"}
_DURATION: Final[Document] = {"type": "string", "examples": ["90s", "20min", "3 slots"]}
_AMOUNTS: Final[Document] = {"type": "object", "additionalProperties": _AMOUNT}

_JOB_SCHEMA: Final[Document] = {
    "type": "object",
    "required": ["name", "worker", "utility"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 200},
        "tenant": {"type": ["string", "null"], "maxLength": 200},
        "epochs": {"type": "integer", "minimum": 1},
        "chunks": {"type": "integer", "minimum": 1},
        "minibatches": {"type": "integer", "minimum": 1},
        "minibatch_time": _DURATION,
        "update_time": _DURATION,
        "gradient": _AMOUNT,
        "worker": _AMOUNTS,
        "ps": _AMOUNTS,
        "internal_bandwidth": _AMOUNT,
        "utility": {
            "type": "object",
            "required": ["kind"],
            "properties": {
                "kind": {
                    "enum": ["constant", "sigmoid", "reciprocal", "linear", "power", "deadline"]
                }
            },
        },
        "workers": {
            "type": "object",
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
        },
        "throughput": {"type": "object", "additionalProperties": {"type": "number"}},
        "family": {"type": "string", "minLength": 1, "maxLength": 200},
        "labels": {"type": "object", "additionalProperties": _TEXT},
        "restart": _DURATION,
        "priority": {"type": "number"},
        "walltime": _DURATION,
        "run": {
            "type": "object",
            "required": ["command"],
            "properties": {
                "command": {"oneOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
                "env": {"type": "object", "additionalProperties": _TEXT},
                "workdir": _TEXT,
                "retries": {"type": "integer", "minimum": 0},
                "grace": _DURATION,
                "tolerates": {"enum": ["nothing", "workers"]},
                "user": {"type": ["string", "null"], "maxLength": 32},
            },
        },
    },
}

_VIEW_SCHEMA: Final[Document] = {
    "type": "object",
    "required": ["name", "tenant", "state", "promise", "progress", "required", "generation"],
    "properties": {
        "id": {"type": "integer"},
        "name": _TEXT,
        "tenant": {"type": ["string", "null"]},
        "state": {"enum": _STATES},
        **dict.fromkeys(
            ("submitted", "decided", "started", "promise", "completion", "closed"), _TIME
        ),
        **dict.fromkeys(("promise_slot", "first_promise_slot", "completion_slot"), _COUNT),
        "progress": {"type": "number", "description": "mini-batches"},
        "required": {"type": "number", "description": "mini-batches"},
        "generation": {"type": "integer"},
        "workers": {"type": "integer"},
        "ps": {"type": "integer"},
        "servers": {"type": "array", "items": _TEXT},
        **dict.fromkeys(("payoff", "utility", "cost"), _NUMBER),
        "reason": {"type": ["object", "null"]},
        "failures": {"type": "integer"},
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

_PROBLEM: Final[Document] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "code": _TEXT,
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"place": _TEXT, "message": _TEXT, "mend": _TEXT},
            },
        },
    },
}

_PROBLEM_EXAMPLE: Final[Document] = {
    "type": "urn:shadowprice:problem:input",
    "title": "The request is wrong",
    "status": 422,
    "detail": "job.utilty: unknown key; did you mean 'utility'?",
    "code": "input",
    "errors": [
        {"place": "job.utilty", "message": "unknown key", "mend": "did you mean 'utility'?"}
    ],
}


def _page(name: str, schema: Document) -> Document:
    return {
        "type": "object",
        "required": [name],
        "properties": {
            name: {"type": "array", "items": schema},
            "next": {"type": ["integer", "null"], "description": "cursor of the next page"},
        },
    }


def _json(schema: Document, example: Any = None) -> Document:
    content: Document = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"application/json": content}


def _body(schema: Document, example: Any) -> Document:
    return {"requestBody": {"required": True, "content": _json(schema, example)}}


def _query(name: str, schema: Document, what: str) -> Document:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": what}


_LIMIT: Final = _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "entries")
_CURSOR: Final = _query("cursor", {"type": "integer", "minimum": 0}, "`next` of the page before")


def _route(
    answer: Document | None,
    example: Any = None,
    *,
    status: int = 200,
    body: tuple[Document, Any] | None = None,
    query: tuple[Document, ...] = (),
    problems: tuple[int, ...] = (401, 422, 503),
    described: str = "done",
    open_: bool = False,
) -> Document:
    extra: Document = {}
    if body is not None:
        extra |= _body(*body)
    if query:
        extra["parameters"] = list(query)
    if not open_:
        extra["security"] = [{"token": []}]
    responses: dict[int | str, Document] = {status: {"description": described}}
    if answer is not None:
        responses[status]["content"] = _json(answer, example)
    for code in problems:
        content = {"schema": _PROBLEM, "example": _PROBLEM_EXAMPLE | {"status": code}}
        responses[code] = {
            "description": "a problem",
            "content": {"application/problem+json": content},
        }
    return {"responses": responses, "openapi_extra": extra, "response_model": None}


_OWN: Final = (401, 404, 422, 503)
_CHANGE: Final = (400, 401, 404, 409, 413, 415, 422, 503)
_OPERATOR: Final = (400, 401, 403, 404, 409, 413, 415, 422, 503)

SUBMIT: Final = _route(
    {"oneOf": [_VIEW_SCHEMA, _page("jobs", {"type": "object"})]},
    VIEW,
    body=(
        {
            "oneOf": [
                _JOB_SCHEMA,
                {
                    "type": "object",
                    "required": ["jobs"],
                    "additionalProperties": False,
                    "properties": {
                        "jobs": {"type": "array", "items": _JOB_SCHEMA, "maxItems": 1000}
                    },
                },
            ]
        },
        JOB,
    ),
    query=(_query("wait", {"type": "integer", "minimum": 0, "maximum": 60}, "seconds"),),
    problems=(400, 401, 403, 409, 413, 415, 422, 429, 500, 503),
    described="decided (one job)",
)
SUBMIT["responses"][202] = {
    "description": "accepted, to be decided on soon (several jobs)",
    "content": _json(_page("jobs", _VIEW_SCHEMA), {"jobs": [VIEW | {"state": "pending"}]}),
}
LIST_JOBS: Final = _route(
    _page("jobs", _VIEW_SCHEMA),
    {"jobs": [VIEW], "next": None},
    query=(
        _query("state", _TEXT, "states with commas between them"),
        _query("tenant", _TEXT, "whose"),
        _CURSOR,
        _LIMIT,
    ),
    problems=(401, 403, 422, 503),
)
GET_JOB: Final = _route(_VIEW_SCHEMA, VIEW | {"spec": JOB}, problems=_OWN)
CANCEL: Final = _route(_VIEW_SCHEMA, VIEW | {"state": "cancelled"}, problems=_CHANGE)
REVISE: Final = _route(
    _VIEW_SCHEMA,
    VIEW,
    body=(
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                "deadline": _DURATION,
                **{key: _JOB_SCHEMA["properties"][key] for key in REVISABLE},
            },
        },
        {"deadline": "6h"},
    ),
    problems=_CHANGE,
)
EXPLAIN: Final = _route(
    {"type": "object"},
    {
        "job": VIEW,
        "events": [],
        "generations": [],
        "lines": ["2026-11-22 09:00:12  admitted, promised by the end of slot 11"],
    },
    problems=_OWN,
)
GENERATIONS: Final = _route(
    _page("generations", {"type": "object"}),
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
    query=(_LIMIT,),
    problems=_OWN,
)
CURVE: Final = _route(
    _page("points", {"type": "object"}),
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
    query=(_query("limit", {"type": "integer", "minimum": 1, "maximum": 5000}, "points"),),
    problems=_OWN,
)
PROGRESS: Final = _route(
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
LOGS: Final = _route(
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
        _query("generation", {"type": "integer", "minimum": 1}, "by default the newest"),
        _query("process", _TEXT, "such as worker-0"),
        _query("start", {"type": "integer", "minimum": 0}, "first byte"),
        _query("most", {"type": "integer", "minimum": 1, "maximum": 1048576}, "bytes"),
    ),
    problems=(401, 404, 409, 422, 503),
)
QUOTE: Final = _route(
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
    body=(_JOB_SCHEMA, {key: value for key, value in JOB.items() if key != "run"}),
    problems=(400, 401, 403, 409, 413, 415, 422, 503),
)
PRICES: Final = _route(
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
    query=(_query("slots", {"type": "integer", "minimum": 1, "maximum": 1000}, "how many"),),
)
PRICE_HISTORY: Final = _route(
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
        _query("back", {"type": "integer", "minimum": 1, "maximum": 10**9}, "slots of past"),
        _LIMIT,
    ),
)
TIMELINE: Final = _route(
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
        _query("back", {"type": "integer", "minimum": 0, "maximum": 1000}, "slots of past"),
        _query("slots", {"type": "integer", "minimum": 1, "maximum": 1000}, "slots of future"),
        _query("server", _TEXT, "of one server"),
        _query("job", _TEXT, "of one job"),
        _query(
            "real", {"type": "boolean"}, "what was seen to run, where the service only observes"
        ),
    ),
    problems=(401, 404, 409, 422, 503),
)
COMPARISON: Final = _route(
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
    query=(_query("days", {"type": "number", "exclusiveMinimum": 0}, "how far to look back"),),
    problems=(401, 409, 422, 503),
)
COMPARED_JOBS: Final = _route(
    _page("jobs", {"type": "object", "required": ["name", "would", "real", "gain"]}),
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
    query=(_CURSOR, _LIMIT),
    problems=(401, 409, 422, 503),
)
DECISIONS: Final = _route(
    _page("decisions", {"type": "object"}),
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
        _query("job", _TEXT, "of one job"),
        _query("tenant", _TEXT, "whose"),
        _CURSOR,
        _LIMIT,
    ),
    problems=(401, 403, 422, 503),
)
EVENTS: Final = _route(
    None,
    query=(_query("after", {"type": "integer", "minimum": 0}, "as Last-Event-ID"),),
    problems=(401, 422, 429, 503),
    described="a stream of server-sent events",
)
EVENTS["responses"][200]["content"] = {
    "text/event-stream": {
        "schema": _TEXT,
        "example": 'id: 42\nevent: admitted\ndata: {"id":42,"kind":"admitted",...}\n\n',
    }
}
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
        "name": _TEXT,
        "count": {"type": "integer", "minimum": 1},
        "role": {"enum": ["worker", "ps", "any"]},
        "capacity": _AMOUNTS,
        "cost": {"type": "number", "minimum": 0},
    },
}
LIST_SERVERS: Final = _route(
    _page("servers", {"type": "object"}),
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
ADD_SERVERS: Final = _route(
    _page("servers", {"type": "object"}),
    {"servers": [_SERVER]},
    status=201,
    body=(_SERVER_SCHEMA, {"name": "gpu", "count": 2, "capacity": {"gpu": 8, "cpu": 32}}),
    problems=_OPERATOR,
    described="added",
)
CHANGE_SERVER: Final = _route(
    {"type": "object"},
    _SERVER | {"state": "drained"},
    body=(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "drain": {"type": "boolean"},
                "capacity": _AMOUNTS,
                "role": {"enum": ["worker", "ps", "any"]},
                "cost": {"type": "number", "minimum": 0},
            },
        },
        {"drain": True},
    ),
    problems=_OPERATOR,
)
REMOVE_SERVER: Final = _route(None, status=204, problems=_OPERATOR, described="removed")
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
LIST_TENANTS: Final = _route(_page("tenants", {"type": "object"}), {"tenants": [_TENANT]})
PUT_TENANT: Final = _route(
    {"type": "object"},
    _TENANT,
    body=(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"share": _AMOUNTS, "budget": _BUDGET},
        },
        {"share": {"gpu": 4}, "budget": {"points": 500, "period": "7d", "carry": 100}},
    ),
    problems=_OPERATOR,
)
GRANT: Final = _route(
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
    problems=_OPERATOR,
    described="given",
)
STATEMENT: Final = _route(
    _page("entries", {"type": "object"}),
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
        _query("since", _TEXT, "from this moment on, like 2026-11-16T00:00:00Z"),
        _query("until", _TEXT, "before this moment"),
        _query("back", {"type": "integer", "minimum": 0}, "one period: 0 the one that runs"),
        _query("kind", _TEXT, "grant, expiry, debit, refund, payment, with commas between them"),
        _CURSOR,
        _LIMIT,
    ),
    problems=(401, 404, 409, 422, 503),
)
REMOVE_TENANT: Final = _route(None, status=204, problems=_OPERATOR, described="removed")
_TOKEN: Final[Document] = {
    "id": 2,
    "role": "tenant",
    "tenant": "vision",
    "note": "ci",
    "expires": "2027-02-20T09:00:00.000Z",
}
LIST_TOKENS: Final = _route(
    _page("tokens", {"type": "object"}), {"tokens": [_TOKEN]}, problems=(401, 403, 422, 503)
)
CREATE_TOKEN: Final = _route(
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
                "expires": {**_DURATION, "type": ["string", "null"]},
                "note": {"type": "string", "maxLength": 200},
            },
        },
        {"role": "tenant", "tenant": "vision", "expires": "90d", "note": "ci"},
    ),
    problems=_OPERATOR,
    described="made; the token is shown this once",
)
REVOKE_TOKEN: Final = _route(None, status=204, problems=_OPERATOR, described="revoked")
HEALTH: Final = _route(
    {"type": "object"}, {"status": "ok"}, problems=(), open_=True, described="it answers"
)
READY: Final = _route(
    {"type": "object"}, {"status": "ready"}, problems=(), open_=True, described="it works"
)
READY["responses"][503] = {
    "description": "it stands by, or cannot work",
    "content": _json({"type": "object"}, {"status": "standby"}),
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
ASK_WHATIF: Final = _route(
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
                "policy": _TEXT,
                "set": {"type": "object"},
            },
        },
        {"days": 7, "servers": {"gpu": 2}},
    ),
    problems=(400, 401, 403, 409, 413, 415, 422, 429, 503),
    described="begun",
)
LIST_WHATIF: Final = _route(
    _page("runs", {"type": "object"}), {"runs": [_WHATIF]}, problems=(401, 403, 422, 503)
)
GET_WHATIF: Final = _route({"type": "object"}, _WHATIF, problems=(401, 403, 404, 422, 503))
CANCEL_WHATIF: Final = _route(
    {"type": "object"}, _WHATIF | {"state": "cancelled"}, problems=(401, 403, 404, 422, 503)
)
METRICS: Final = _route(None, problems=(401, 403, 422, 503), described="measures")
METRICS["responses"][200]["content"] = {"text/plain": {"schema": _TEXT}}
SERVICE: Final = _route(
    {"type": "object"},
    {"version": "1.0", "policy": "rolling", "executor": "local", "slot_seconds": 1200.0},
)
