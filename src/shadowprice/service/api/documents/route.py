"""How a route is described: answers, examples, bodies, problems."""

from __future__ import annotations

from typing import Any, Final

Document = dict[str, Any]
TEXT: Final[Document] = {"type": "string"}
TIME: Final[Document] = {"type": ["string", "null"], "format": "date-time"}
COUNT: Final[Document] = {"type": ["integer", "null"]}
NUMBER: Final[Document] = {"type": ["number", "null"]}
AMOUNT: Final[Document] = {"type": ["string", "number"], "description": "with its unit: 16GiB"}
DURATION: Final[Document] = {"type": "string", "examples": ["90s", "20min", "3 slots"]}
AMOUNTS: Final[Document] = {"type": "object", "additionalProperties": AMOUNT}
_PROBLEM: Final[Document] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": TEXT,
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": TEXT,
        "code": TEXT,
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"place": TEXT, "message": TEXT, "mend": TEXT},
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


def page(name: str, schema: Document) -> Document:
    """Return the schema of one page of a listing, whose entries are under ``name``."""
    return {
        "type": "object",
        "required": [name],
        "properties": {
            name: {"type": "array", "items": schema},
            "next": {"type": ["integer", "null"], "description": "cursor of the next page"},
        },
    }


def json_of(schema: Document, example: Any = None) -> Document:
    """Return a content that is JSON."""
    content: Document = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"application/json": content}


def _body(schema: Document, example: Any) -> Document:
    return {"requestBody": {"required": True, "content": json_of(schema, example)}}


def query(name: str, schema: Document, what: str) -> Document:
    """Return an optional parameter of the query."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": what}


LIMIT: Final = query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "entries")
CURSOR: Final = query("cursor", {"type": "integer", "minimum": 0}, "`next` of the page before")


def route(
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
    """Return what a route's decorator takes to describe it.

    Parameters
    ----------
    answer : dict or None
        Schema of the answer; None where it has no body of JSON.
    example : object
        An answer.
    status : int
        Of an answer that is no problem.
    body : (dict, object), optional
        Schema and example of what is sent.
    query : tuple of dict
        Parameters, of `query`.
    problems : tuple of int
        Statuses of the problems that may come instead.
    described : str
        The answer, in a few words.
    open_ : bool
        Whether it needs no token.
    """
    extra: Document = {}
    if body is not None:
        extra |= _body(*body)
    if query:
        extra["parameters"] = list(query)
    if not open_:
        extra["security"] = [{"token": []}]
    responses: dict[int | str, Document] = {status: {"description": described}}
    if answer is not None:
        responses[status]["content"] = json_of(answer, example)
    for code in problems:
        content = {"schema": _PROBLEM, "example": _PROBLEM_EXAMPLE | {"status": code}}
        responses[code] = {
            "description": "a problem",
            "content": {"application/problem+json": content},
        }
    return {"responses": responses, "openapi_extra": extra, "response_model": None}


OWN: Final = (401, 404, 422, 503)
CHANGE: Final = (400, 401, 404, 409, 413, 415, 422, 503)
OPERATOR: Final = (400, 401, 403, 404, 409, 413, 415, 422, 503)
