"""Valid and damaged files of every kind: grammars and mutations."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import yaml

from tests.hostile.case import Content

Document = Any

CLUSTER: Document = {
    "slot": "10min",
    "horizon": 20,
    "servers": [
        {"name": "gpu", "count": 2, "role": "worker", "capacity": {"gpu": 4, "memory": "64GiB"}},
        {"name": "net", "role": "ps", "capacity": {"cpu": 8, "memory": "64GiB"}},
    ],
}
TENANTS: Document = {
    "slot": "10min",
    "horizon": 10,
    "servers": [{"name": "s", "count": 3, "capacity": {"worker": 2, "ps": 1}}],
    "tenants": [
        {"name": "a", "share": {"worker": 4, "ps": 2}},
        {"name": "b", "share": {"worker": 2, "ps": 1}},
    ],
}
_JOB: Document = {
    "name": "one",
    "arrival": "0 slots",
    "epochs": 2,
    "chunks": 4,
    "minibatches": 10,
    "minibatch_time": "30s",
    "worker": {"gpu": 1, "memory": "1GiB"},
    "ps": {"cpu": 1},
    "utility": {"kind": "sigmoid", "value": 10, "decay": 0.5, "target": "3 slots"},
}
JOBS: Document = {
    "jobs": [
        _JOB,
        {
            "name": "two",
            "arrival": "15min",
            "chunks": 4,
            "minibatches": 100,
            "throughput": {1: 0.2, 2: 0.35, 4: 0.5},
            "worker": {"gpu": 1},
            "utility": {"kind": "deadline", "value": 9, "by": "2h"},
            "workers": {"min": 1, "max": 4},
            "labels": {"class": "x"},
        },
        {
            "name": "three",
            "arrival": "2 slots",
            "chunks": 2,
            "minibatches": 20,
            "minibatch_time": "30s",
            "gradient": "10MB",
            "worker": {"gpu": 2, "bandwidth": "1Gbps"},
            "internal_bandwidth": "10Gbps",
            "utility": {"kind": "linear", "value": 4, "slope": -0.1},
        },
    ]
}
BAGS: Document = {
    "jobs": [
        {
            "name": "bag",
            "arrival": "1 slots",
            "tasks": [
                {"count": 3, "duration": {"kind": "pareto", "shape": 2.0, "mean": "90s"}},
                {
                    "count": 2,
                    "duration": {"kind": "log-normal", "sigma": 1.0, "median": "60s"},
                },
            ],
            "deadline": "20min",
            "miss_probability": 0.05,
            "worker": {"gpu": 1},
            "utility": {"kind": "constant", "value": 60},
        },
        _JOB,
    ]
}
PLACES: Document = {
    "jobs": [
        {
            "name": f"j{index}",
            "tenant": "ab"[index % 2],
            "arrival": f"{index} slots",
            "chunks": 2,
            "minibatches": 20,
            "minibatch_time": "1min",
            "worker": {"worker": 1},
            "ps": {"ps": 1},
            "utility": {"kind": "reciprocal", "value": 10 + index},
        }
        for index in range(4)
    ]
}
INCIDENTS: Document = {
    "incidents": [
        {"slot": 1, "server_lost": "gpu-1"},
        {"slot": 2, "cancel": "one"},
        {"slot": 4, "server_back": "gpu-1"},
    ]
}
CLONING: Document = {
    "machines": 20,
    "deadline": "60s",
    "miss_probability": 0.05,
    "tasks": [
        {"count": 3, "duration": {"kind": "pareto", "shape": 2.0, "mean": "12s"}},
        {"count": 2, "duration": {"kind": "weibull", "shape": 0.7, "mean": "9s"}},
        {
            "count": 1,
            "duration": {
                "kind": "hyper-exponential",
                "phases": [{"share": 0.9, "mean": "5s"}, {"share": 0.1, "mean": "20s"}],
            },
        },
    ],
}
MONEY: Document = {
    **CLUSTER,
    "servers": [
        {"name": "old", "count": 2, "capacity": {"gpu/k80": 4, "cpu": 8}, "cost": 3.6},
        {"name": "new", "capacity": {"gpu/v100": 8, "cpu": 8}, "cost": 24.48},
    ],
}
TYPED: Document = {
    "jobs": [
        {
            "name": name,
            "chunks": 4,
            "minibatches": 40,
            "worker": {kind: 1},
            "throughput": {1: 0.1, 2: 0.19, 4: 0.3},
            "utility": {"kind": "deadline", "value": 9, "by": "6h"},
            "priority": 2,
            "walltime": "8h",
            "restart": "45s",
        }
        for name, kind in (("one", "gpu/k80"), ("two", "gpu/v100"), ("three", "gpu/v100"))
    ]
}
EMPIRICAL: Document = {
    **CLONING,
    "tasks": [
        {
            "count": 2,
            "duration": {"kind": "empirical", "file": "d.csv", "column": "s", "tail": "pareto"},
        }
    ],
}
DURATIONS = "s,other\n" + "".join(f"{n}.5,x\n" for n in range(1, 60))
PRICES: Document = {
    "format": "shadowprice-prices",
    "version": 1,
    "slot_seconds": "600",
    "resources": ["gpu", "memory", "cpu"],
    "pools": [
        [
            {"resource": name, "parts": parts, "reference": reference, "total": total}
            for name, reference in pair
            for parts in range(5)
        ]
        for pair, total in (
            ((("gpu", 4000), ("memory", 68719476736)), "2"),
            ((("memory", 68719476736), ("cpu", 8000)), "1"),
        )
    ],
    "prices": [[0, 0, 0, 0.25], [1, 0, 1, 0.5]],
}
PARAMS = 'prices = "online"\n[dorm]\nwindow = 2\n'
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 3, 1000, 10**6, 10**7, 10**9, 2**31, 10**12, 2**53 + 1, 2**62, 2**63, 2**64, 10**30,
    10**300, -(10**18), 0.5, 1e-9, 5e-324, 1e15, 1e18, 1e100, 1e308, -1e308, float("inf"),
    float("-inf"), float("nan"), True, False,
)  # fmt: skip
TEXTS = (
    "", " ", "x", "0", "-1", "1e999", "nan", "inf", "0s", "1s", "1us", "1e-300s", "1e999s",
    "1e9 slots", "1000000000 slots", "1e15 slots", "99999w", "-5min", "3 parsecs", "20min",
    "5 slots",
    "1e300GiB", "1PiB", "4PB", "10Gbps", "0.0001", "unlimited", "9" * 400, "9" * 5000 + "s",
    "\x1b[31mred\x1b[0m", "\x07bell", "tab\tnew\nline", "\x7f", "\x9b31m", "\u202eevil", "\u2028",
    "\uff46ull", "💥", "a" * 300, "b" * 100_000, "../../etc/passwd", "/dev/null", "%s%n{}{0}",
    "[bold]x[/",
    "\ud800", "half\udcff", "[/]", "<script>alert(1)</script>", "'; drop", "oasis", "fifo", "gpu-0",
    "gpu", "one", "null", "~",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": 1}}}, [1, 2, 3], {"gpu": 1},
    {"kind": "constant"}, {"kind": []}, {"kind": "constant", "value": 1},
)  # fmt: skip


def text_of(document: Document) -> str:
    """Write a document as YAML."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def paths(document: Document, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a document."""
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        yield (*at, key)
        yield from paths(value, (*at, key))


def nasty(rng: random.Random) -> Any:
    """Return a value that a reader may not expect."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.55:
        return rng.choice((1, -1)) * int(10 ** rng.uniform(0, 20))
    return rng.choice(TEXTS) if kind < 0.85 else copy.deepcopy(rng.choice(SHAPES))


def mutated(document: Document, rng: random.Random, changes: int) -> Document:
    """Return a document with some values changed, dropped, doubled, moved or renamed."""
    document = copy.deepcopy(document)
    for _ in range(changes):
        places = list(paths(document))
        if not places:
            return nasty(rng)
        *before, last = rng.choice(places)
        target = document
        for part in before:
            target = target[part]
        _change(document, target, last, rng)
    return document


def _change(document: Document, target: Any, key: Any, rng: random.Random) -> None:
    action = rng.random()
    if action < 0.6:
        target[key] = nasty(rng)
    elif action < 0.7:
        del target[key]
    elif action < 0.8 and isinstance(target, list):
        target.extend(copy.deepcopy(target[key]) for _ in range(rng.choice((1, 2, 40))))
    elif action < 0.9 and isinstance(target, dict):
        name = nasty(rng)
        name = name if isinstance(name, str | int | float | bool) else "other"
        target[name] = target.pop(key) if rng.random() < 0.5 else copy.deepcopy(target[key])
    else:
        places = list(paths(document))
        value = document
        for part in rng.choice(places):
            value = value[part]
        target[key] = copy.deepcopy(value)


def damaged_text(text: str, rng: random.Random) -> Content:
    """Return a text, cut, flipped, repeated, nested or sprinkled with invalid characters."""
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(12)
    piece = rng.choice(TEXTS)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + piece + text[at:]
    if kind == 2:
        end = min(len(text), at + rng.randrange(1, 40))
        return text[:at] + text[end:]
    if kind == 3:
        return text[:at] + chr(rng.choice((0, 1, 7, 27, 127, 0x85, 0x9B, 0xFEFF))) + text[at:]
    if kind == 4:
        unit = rng.choice(("[", "{a: ", "- ", "{", "&a [", '"', "#", "a: ", "((", "\t", "\n"))
        return {
            "repeat": [unit, rng.choice((50, 2000, 100_000))],
            "before": text[:at],
            "after": text[at:],
        }
    if kind == 5:
        return {"gzip": text}
    if kind == 6:
        return {"cut": {"gzip": text}, "at": rng.randrange(1, 60)}
    if kind == 7:
        return {"zeros": rng.choice((1, 1000, 10**7))}
    if kind == 8:
        return {"base64": "//4AZwBwAHUA"}
    if kind == 9:
        levels = rng.randrange(3, 12)
        rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
        return "\n".join(rows) + "\n" + text
    if kind == 10:
        lines = text.splitlines(keepends=True) or [""]
        rng.shuffle(lines)
        return "".join(lines)
    return text.replace("\n", rng.choice(("\r", "\r\n", "\n\n", " ")))


def file_of(document: Document, rng: random.Random, form: str = "yaml") -> Content:
    """Return a file of a document: valid, with mutated values, or damaged as text."""
    chance = rng.random()
    if chance > 0.15:
        document = mutated(document, rng, rng.choice((1, 1, 1, 2, 3, 8)))
    text = text_of(document) if form == "yaml" else lines_of(document)
    return damaged_text(text, rng) if rng.random() < 0.2 else text


def lines_of(document: Document) -> str:
    """Write the records of a document as JSON Lines."""
    rows = document
    if isinstance(document, dict) and len(document) == 1:
        rows = next(iter(document.values()))
    rows = rows if isinstance(rows, list) else [rows]
    return "".join(json.dumps(row, default=str) + "\n" for row in rows)
