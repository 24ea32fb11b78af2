"""Names and resources of plain commands."""

from __future__ import annotations

from typing import Any

import pytest

from shadowprice.cli.plain_job import PlainJob, generate_repeated_name
from shadowprice.core import bounds


@pytest.mark.parametrize(
    ("name", "stem"),
    [("train-x7k2mf", "train"), ("train-resnet", "train-resnet"), ("nightly", "nightly")],
)
def test_a_repeated_name_replaces_only_generated_characters(name: str, stem: str) -> None:
    repeated = generate_repeated_name(name)
    assert repeated.rpartition("-")[0] == stem
    assert repeated != name


def test_a_repeated_name_is_not_longer_than_names_may_be() -> None:
    assert len(generate_repeated_name("a" * int(bounds.NAME.most))) <= bounds.NAME.most


@pytest.mark.parametrize(
    ("options", "worker"),
    [
        ({}, {"cpu": 1}),
        ({"memory": "16GiB"}, {"cpu": 1, "memory": "16GiB"}),
        ({"gpus": "a100:2"}, {"gpu/a100": 2.0}),
        ({"gpus": "1", "cpus": 4.0}, {"gpu": 1.0, "cpu": 4.0}),
    ],
)
def test_a_command_without_gpus_takes_a_core(
    options: dict[str, Any], worker: dict[str, Any]
) -> None:
    assert PlainJob(["train"], **options)._worker() == worker
