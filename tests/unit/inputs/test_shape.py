"""YAML that expands to far more than its size, and JSON that is nested without end."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import tracemalloc
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowprice.core import bounds
from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import InputError
from shadowprice.core.specs import ClusterSpec, JobSpec, validate
from shadowprice.inputs import read_jobs, read_parameters
from shadowprice.inputs.text import (
    check_document_size,
    check_yaml_size,
    load_json_line,
    load_yaml,
    read_lines,
    read_text,
)
from shadowprice.traces.text import read_bytes


def bomb(levels: int) -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(rows)


def test_documents_are_counted_as_their_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("a.yaml")
    document = {"a": [1, "x", None, {"b": []}], "c": {}, "d": 1.5}  # 3 keys + 3 + 4 + 2 + itself
    for maximum, is_valid in ((13, True), (12, False)):
        limit = dataclasses.replace(bounds.VALUES, maximum=maximum)
        monkeypatch.setattr(bounds, "VALUES", limit)
        for check in (
            lambda: check_yaml_size(path, yaml.safe_dump(document)),
            lambda: check_document_size(path, document, "split it"),
        ):
            with nullcontext() if is_valid else pytest.raises(InputError, match="13 exceeds the"):
                check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(12), " exceeds the limit of 250,000 values of a YAML file"),
        ("[" * 100_000, "line 1: 51 exceeds the limit of 50 levels of nesting"),
        ("- " * 100_000, "levels of nesting"),
        ("{a: " * 100_000, "levels of nesting"),
        ("a: &x [*x]", "*x contains itself"),
        ("a: &x {b: *x}", "*x contains itself"),
        ("a: *nobody", "undefined alias"),
        ("a: '" + "x" * 5000, "not YAML"),
        (
            "a: " + "x" * 5000,
            "5,000 exceeds the limit of 2,000 characters of a text (4,000 of a path); check its",
        ),
        ("a: " + ":".join("1" * 3000), "characters"),
        ("a: !!int ''", "not YAML"),
        ("a: !!bool maybe", "not YAML"),
        ("a: !!float x", "not YAML"),
        ("a: !!timestamp x", "not YAML"),
        ("a: !!binary x", "not YAML"),
        ("a: !!python/object:os.system {}", "not YAML"),
        ("a: 1\na: 2", "the key 'a' is repeated"),
        ("? [1, 2]\n: 3", "not YAML"),
        ("!!map [1]", "not YAML"),
        ("<<: 3", "not YAML"),
        ("a: " + "9" * 3999, "a"),
    ],
)
def test_hostile_yaml(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "h.yaml"
    path.write_text(text)
    tracemalloc.start()
    if words == "a":  # long, but a number
        assert load_yaml(path) == {"a": int("9" * 3999)}
    else:
        with pytest.raises(InputError) as caught:
            load_yaml(path)
        assert words in str(caught.value)
        assert len(str(caught.value)) < 600
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


def test_aliases_are_expanded(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")
    assert load_yaml(path) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_endless_json_is_refused() -> None:
    for line in ("[" * 100_000, '{"a":' * 100_000, "9" * 5000):
        with pytest.raises(InputError) as caught:
            load_json_line(Path("j.jsonl"), 3, line)
        assert len(str(caught.value)) < 300
    assert str(caught.value) == "j.jsonl: line 3: a number has too many digits"
    many = "{" + ",".join(f'"k{n}": 1' for n in range(100_000)) + ', "k7": 2}'
    with pytest.raises(InputError, match="the key 'k7' is repeated"):
        load_json_line(Path("j.jsonl"), 1, many)


def test_endless_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    for text in ("x = " + "[" * 10_000, "x = " + "9" * 5000, "#" * (2 << 20)):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            read_parameters(path)
        assert "set_int_max_str_digits" not in str(caught.value)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.yaml.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(300):
            file.write(b" " * (1 << 20))
    tracemalloc.start()
    with pytest.raises(InputError, match="unpacks to more than"):
        read_text(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_more_lines_than_any_file_has_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.jsonl"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(21):
            file.write(b"\n" * 1_000_000)
    with pytest.raises(InputError, match="exceeds the limit of 20,000,000 lines of a file"):
        read_bytes(path)
    monkeypatch.setattr(bounds, "LINES", InputLimit("lines", 100_000, "lines of a file"))
    with pytest.raises(InputError, match="exceeds the limit of 100,000 lines of a file"):
        deque(read_lines(path), 0)


def test_a_pipe_or_device_is_refused_without_blocking(tmp_path: Path) -> None:
    import os

    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InputError, match="is not a regular file"):
        read_text(path)
    with pytest.raises(InputError, match="is not a regular file"):
        read_text(Path("/dev/zero"))


JOB = {
    "name": "j",
    "minibatch_time": "1s",
    "worker": {"gpu": 1},
    "utility": {"kind": "constant", "value": 1},
}
CLUSTER = ClusterSpec.model_validate(
    {"slot": "1min", "servers": [{"name": "s", "capacity": {"gpu": 8}}]}
).resolve()


@pytest.mark.parametrize(
    "changes",
    [{"name": "a{}"}, {"labels": {"a{}": "x"}}, {"labels": {"a": "{}"}}, {"worker": {"g{}": 1}}],
    ids=str,
)
def test_an_unpaired_surrogate_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "jobs.jsonl"
    text = json.dumps({**JOB, **changes}) + "\n"
    for half in (r"\ud800", r"\udfff"):
        path.write_text(text.replace("{}", half))
        with pytest.raises(
            InputError, match="contains an unpaired surrogate; use valid Unicode text"
        ):
            read_jobs(path, CLUSTER)
    if "worker" not in changes:
        path.write_text(text.replace("{}", r"\ud83d\ude00"))
        assert len(read_jobs(path, CLUSTER)) == 1


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"name": "a{}"}, "name: contains a null"),
        ({"tenant": "{}"}, "tenant: contains a null"),
        ({"labels": {"a": "{}"}}, "labels: 'a': contains a null"),
        ({"labels": {"a{}": "x"}}, r"labels: 'a\\x00': contains a null"),
        ({"run": {"command": "a{}"}}, "run.command: it contains a null"),
        ({"run": {"command": ["a", "{}"]}}, "run.command: argument 1 contains a null"),
        ({"run": {"command": "a", "env": {"A": "{}secret"}}}, "run.env: 'A': contains a null"),
        ({"run": {"command": "a", "workdir": "/{}"}}, "run.workdir: contains a null"),
    ],
    ids=str,
)
@pytest.mark.parametrize("ending", ["jsonl", "yaml"])
def test_a_null_character_is_reported_with_its_location(
    tmp_path: Path, changes: dict[str, object], place: str, ending: str
) -> None:
    path = tmp_path / f"jobs.{ending}"
    one = json.dumps({**JOB, **changes}).replace("{}", r"\u0000")
    path.write_text(one + "\n" if ending == "jsonl" else f"jobs: [{one}]")
    with pytest.raises(InputError, match=re.escape(path.name)) as caught:
        read_jobs(path, CLUSTER)
    assert place.replace("\\\\", "\\") in str(caught.value)
    assert "secret" not in str(caught.value)


def test_yaml_cannot_contain_unpaired_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "h.yaml"
    path.write_text('a: "\\ud800"\n')
    with pytest.raises(InputError, match="not YAML"):
        load_yaml(path)


def test_skipped_lines_are_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text("{}\n" * 3_000 + json.dumps(JOB))
    tracemalloc.start()
    assert [job.name for job in read_jobs(path, CLUSTER, skip_invalid=True)] == ["j"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": [0] * 20_000}, "jobs[0].tasks[0]"),
        ({f"key-{number}": 1 for number in range(20_000)}, "unknown key"),
        ({"run": {f"key-{number}": 1 for number in range(20_000)}}, "unknown key"),
        (
            {"labels": {str(number): 0 for number in range(20_000)}},
            "exceeds the limit of 100 labels",
        ),
        ({"worker": {str(n): "x" for n in range(20_000)}}, "exceeds the limit of 64 resources"),
        ({"throughput": dict.fromkeys(range(20_000), "x")}, "exceeds the limit of 10,000"),
        ({"run": {"command": [0] * 20_000}}, "exceeds the limit of 1,000 words"),
        ({"name": [0] * 20_000}, "jobs[0].name: expected text, got a list"),
    ],
)
def test_many_invalid_parts_of_a_job_take_no_memory(changes: dict[str, Any], message: str) -> None:
    """Pydantic keeps more than a kilobyte for each error."""
    tracemalloc.start()
    spec, faults = validate(JobSpec, {"name": "a", **changes}, "jobs[0]")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spec is None
    assert any(message in str(fault) for fault in faults), faults[:3]
    assert peak < 8 << 20


def test_known_keys_are_checked_beside_many_unknown_ones() -> None:
    record = {f"key-{number}": 1 for number in range(1_000)} | {"name": "", "worker": {"gpu": 1}}
    _, faults = validate(JobSpec, record, "jobs[0]")
    unknown = [fault for fault in faults if fault.message == "unknown key"]
    assert 40 < len(unknown) <= 50
    assert any(fault.location == "jobs[0].name" for fault in faults)
