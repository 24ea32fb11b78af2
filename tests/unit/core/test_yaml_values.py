"""YAML words keep their value: a number that text can't be read back from is text or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO
from shadowprice.core.specs import RunSpec
from shadowprice.core.yaml_values import keep_written_words, parse_yaml
from shadowprice.inputs.files import read_cluster, read_jobs, read_records

CLUSTER = "slot: 10min\nhorizon: 20\nservers: [{name: box, count: 1, capacity: {cpu: 4}}]\n"
JOB = (
    "minibatches: 6, minibatch_time: 1s, worker: {cpu: 1}, "
    "utility: {kind: deadline, value: 9, by: 10min}"
)
WORDS = (
    *("0022", "12:30:00", "1:30", "1_000", "+5", "-0", "0x1F", "0b11", "0o17", "1e-3", "6:30.5"),
    *(
        "<<",
        "2024-01-01",
        "2024-01-01T10:00:00Z",
        "no",
        "on",
        "Off",
        "yes",
        "=",
        "1__0",
        "_1",
        "1_",
    ),
)


@pytest.mark.parametrize("word", WORDS)
def test_arguments_and_environment_of_a_command_stay_as_written(word: str) -> None:
    record = parse_yaml(f"run: {{command: [run, {word}], env: {{NAME: {word}}}}}")
    assert keep_written_words(record)["run"] == {"command": ["run", word], "env": {"NAME": word}}


@given(st.text(alphabet="0123456789_+-:.xobeETnyNaf~", min_size=1, max_size=12))
def test_an_integer_or_text_can_be_read_back(word: str) -> None:
    try:
        value = parse_yaml(f"[{word}]")
    except (yaml.YAMLError, ValueError):
        return
    [item] = value if len(value) == 1 else [""]
    if isinstance(item, str):
        assert item in {word, ""}
    elif isinstance(item, int) and not isinstance(item, bool):
        assert getattr(item, "written", str(item)) == word
        assert item == int(word.replace("_", ""))


def test_labels_stay_as_written(tmp_path: Path) -> None:
    labels = {"1_000": "0o17", "id": "1_000", "+5": "yes"}
    written = ", ".join(f"{key}: {value}" for key, value in labels.items())
    assert read(tmp_path, f"name: a, labels: {{{written}}}").labels == labels


def read(folder: Path, part: str) -> Any:
    """Return the job that a part of a job entry describes, read as simulations do."""
    (folder / "c.yaml").write_text(CLUSTER)
    file = folder / "j.yaml"
    speed = JOB.replace("minibatch_time: 1s, ", "") if "throughput" in part else JOB
    file.write_text(f"jobs: [{{{part}, {speed}}}]\n")
    list(read_records(file))  # what `submit` sends
    [job] = read_jobs(file, read_cluster(folder / "c.yaml"))
    return job


def test_text_fields_keep_dates_and_numbers_of_other_bases(tmp_path: Path) -> None:
    job = read(tmp_path, "name: 2024-01-01, labels: {day: 2024-01-01, id: 007, at: 18:00, to: no}")
    assert job.name == "2024-01-01"
    assert job.labels == {"day": "2024-01-01", "id": "007", "at": "18:00", "to": "no"}
    assert read(tmp_path, "name: a, epochs: 80_000").epochs == 80_000
    assert read(tmp_path, "name: a, throughput: {1: 1_000}").gains.tolist() == [600_000 * MICRO]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("epochs: 010", "jobs[0]: `epochs` is given a number with a leading zero"),
        ("epochs: 0x10", "jobs[0].epochs: expected an integer, got '0x10'"),
        ("epochs: 1:30", "jobs[0].epochs: expected an integer, got '1:30'"),
        ("epochs: 2024-01-01", "jobs[0].epochs: expected an integer, got '2024-01-01'"),
        ("epochs: 1e3", "jobs[0].epochs: expected an integer, got '1e3'; write 1000"),
        ("epochs: [1]", "jobs[0].epochs: expected an integer, got a list"),
        ("throughput: {one: 1}", "jobs[0].throughput: in a key, expected an integer, got 'one'"),
        ("throughput: {0: 1}", "jobs[0].throughput: in a key, must be greater than 0, got 0"),
        ("throughput: {1: fast}", "jobs[0].throughput[1]: expected a number, got 'fast'"),
        ("tenant: 1.50", "jobs[0].tenant: expected text, got 1.5; quote it if it is text"),
        ("labels: {a: ~}", "jobs[0].labels.a: expected text, got null; quote it if it is text"),
        ("labels: {5: a}", "jobs[0].labels: in a key, expected text, got 5; quote it if it is"),
        ("throughput: {010: 1}", "jobs[0]: `throughput` is given a number with a leading zero"),
        ("ps: {cpu: 010}", "jobs[0].ps.cpu: '010' has a leading zero"),
        ("restart: 12:30", "jobs[0].restart: '12:30' is not a duration"),
        ("tenant: 1_000", "jobs[0].tenant: expected text, got '1_000'; quote it if it is text"),
        ("run: {command: [a, 1.10]}", "jobs[0].run.command: expected text, got 1.1; quote it"),
        (
            "run: {command: [a], env: {A: 1.5}}",
            "jobs[0].run.env.A: expected text, got 1.5; quote it",
        ),
        ("run: {command: [a, null]}", "jobs[0].run.command: expected text, got null; quote it"),
        ("run: {command: [a], env: {A: ~}}", "jobs[0].run.env.A: expected text, got null; quote"),
        ("run: {command: [a, true]}", "jobs[0].run: `command` is given a boolean"),
        ("tenant: !!binary aGk=", "line 1, column 26: not YAML: the tag '!!binary' is not"),
        ("tenant: !!timestamp 2024-01-01", "the tag '!!timestamp' is not supported"),
        ("epochs: !!int 010", "expected a decimal integer, got '010'"),
        ("2024-01-01: 1", "jobs[0].2024-01-01: unknown key"),
    ],
)
def test_an_invalid_value_of_a_field_is_an_error_with_its_location(
    tmp_path: Path, part: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, f"name: a, {part}")
    assert message in str(caught.value)


def test_a_command_may_be_a_number() -> None:
    assert RunSpec.model_validate({"command": 7}).command == "7"


@pytest.mark.parametrize("text", ["!!float ''", "!!bool maybe", "{a: !!float 1:x}"])
def test_tag_of_another_value_raises_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # any: callers catch it by its type
        parse_yaml(text)
