"""Incident files: valid entries, and the message of each error."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.inputs.files import read_incidents
from tests.support.workloads import make_cluster, make_job

ON = make_cluster(2, 1)
JOBS = [make_job(ON, "resnet", arrival=3)]


def write(folder: Path, text: str, name: str = "incidents.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_and_json_lines_give_the_same_incidents(tmp_path: Path) -> None:
    yaml = write(
        tmp_path,
        "incidents:\n"
        "  - {slot: 9, server_back: gpu-1}\n"
        "  - {slot: 2, server_lost: gpu-1}\n"
        "  - {slot: 4, cancel: resnet}\n",
    )
    lines = write(
        tmp_path,
        '{"slot": 9, "server_back": "gpu-1"}\n\n'
        '{"slot": 2, "server_lost": "gpu-1"}\n{"slot": 4, "cancel": "resnet"}\n',
        "incidents.jsonl",
    )
    expected = [ServerLost(2, ON.names[1]), JobCancelled(4, "resnet"), ServerBack(9, ON.names[1])]
    assert read_incidents(yaml, ON, JOBS) == expected
    assert read_incidents(lines, ON, JOBS) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("jobs: []", "contains no incident list"),
        ("incidents: 3", "contains no incident list"),
        ("incidents: [3]", "incidents[0]"),
        ("incidents: [{slot: 3}]", "give one of server_lost, server_back or cancel"),
        ("incidents: [{slot: 3, cancel: a, server_lost: b}]", "give one of"),
        ("incidents: [{slot: -1, server_lost: gpu-0}]", "slot"),
        ("incidents: [{slot: '3', server_lost: gpu-0}]", "slot"),
        ("incidents: [{server_lost: gpu-0}]", "slot: is missing"),
        ("incidents: [{slot: 1, server_lots: gpu-0}]", "did you mean 'server_lost'?"),
        ("incidents: [{slot: 1, server_lost: gpu-O}]", "did you mean 'gpu-"),
        ("incidents: [{slot: 9, cancel: resnt}]", "did you mean 'resnet'?"),
        ("incidents: [{slot: 3, cancel: resnet}]", "'resnet' arrives in slot 3; cancel it in a"),
        ("incidents: [{slot: 1, server_back: gpu-0}]", "'gpu-0' is not lost in slot 1"),
        (
            "incidents: [{slot: 1, server_lost: gpu-0}, {slot: 2, server_lost: gpu-0}]",
            "'gpu-0' is already lost in slot 2",
        ),
        ("incidents: []", "contains no incident"),
        ("incidents: [{slot: 1, server_lost: gpu-0}]\nmore: 1", "more: unknown key"),
    ],
)
def test_every_problem_is_reported_with_its_location(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as raised:
        read_incidents(path, ON, JOBS)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "incidents: [{slot: 1, cancel: x}, {slot: 2}, {slot: 3, server_lost: y}]",
    )
    with pytest.raises(InputError) as raised:
        read_incidents(path, ON, JOBS)
    assert len(raised.value.faults) == 3


def test_a_line_that_isnt_json_does_not_hide_later_problems(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"slot": 1\n{"slot": 2, "server_lots": "gpu-0"}\n\nnot json\n{"slot": 3, "cancel": "x"}\n',
        "incidents.jsonl",
    )
    with pytest.raises(InputError) as raised:
        read_incidents(path, ON, JOBS)
    text = [str(fault) for fault in raised.value.faults]
    assert [f"line {at}" in " ".join(text) for at in (1, 2, 4, 5)] == [True] * 4
    assert sum("not JSON" in one for one in text) == 2
