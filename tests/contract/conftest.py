"""Run each test on every executor that is available here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.executors.supervision import cgroups
from tests.contract.harness import KubernetesHarness, LocalHarness, RayHarness


def _groups() -> bool:
    group = cgroups.find_or_create("shadowprice-test")
    if group is not None:
        group.rmdir()
    return group is not None


EXECUTORS = [
    "local",
    "local-in-groups",
    pytest.param("ray", marks=pytest.mark.ray),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
]


@pytest.fixture(params=EXECUTORS)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    if not sys.platform.startswith("linux"):
        pytest.skip("these executors need Linux")
    if request.param == "ray":
        on_ray = RayHarness(tmp_path / "executor", request.getfixturevalue("ray_cluster"))
        yield on_ray
        on_ray.end()
        return
    if request.param == "kubernetes":
        pytest.importorskip("kubernetes_asyncio")
        on_kubernetes = KubernetesHarness(tmp_path / "executor", request.getfixturevalue("testbed"))
        yield on_kubernetes
        on_kubernetes.end()
        return
    if request.param == "local-in-groups" and not _groups():
        pytest.skip("no control groups of version 2 may be made here")
    groups = "auto" if request.param == "local-in-groups" else "off"
    chosen = LocalHarness(tmp_path / "executor", {"cgroup": groups, "log_bytes": "100000"})
    yield chosen
    chosen.end()
