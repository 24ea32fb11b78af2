"""Machines that differ by some KiB are one kind of server."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.executors.kubernetes.views import node_view, to_server_info
from shadowprice.executors.processes import round_down_memory
from shadowprice.executors.ray.launch_plan import list_nodes


@given(st.integers(0, 2**52))
def test_it_is_never_more_and_hardly_less_and_what_counts_stays(found: int) -> None:
    counted = round_down_memory(found)
    assert found - found / 512 <= counted <= found
    assert round_down_memory(counted) == counted


@pytest.mark.parametrize("written", [10**9, 100 * 10**9, 250_500 * 10**6, 1 << 20, 2047 << 30])
def test_user_written_values_count_as_they_are(written: int) -> None:
    assert round_down_memory(written) == written
    assert round_down_memory(written + 1) <= written + 1


def memories(machines: int) -> list[int]:
    """Return the memory of machines of one kind, as kernels report it: some MiB more or less."""
    draw = random.Random(0)
    return [(263_845_100 + draw.randrange(-4096, 4096)) << 10 for _ in range(machines)]


def test_kubernetes_nodes_of_one_kind_are_one_kind_of_server() -> None:
    def server(memory: int) -> int:
        item = {
            "metadata": {"name": "n"},
            "status": {"allocatable": {"cpu": "63770m", "memory": f"{memory >> 10}Ki"}},
        }
        view = node_view(item)
        assert view.allocatable["memory"] == memory  # all requests of a node are compared with it
        result = to_server_info(view, {"memory": 441 << 20}, gpu="nvidia.com/gpu", tolerations=[])
        return result.capacity["memory"]

    result = memories(500)
    assert len(set(result)) > 400
    assert len({server(memory) for memory in result}) <= 2


def test_ray_nodes_of_one_kind_are_one_kind_of_server() -> None:
    records = [
        {
            "NodeID": str(index), "NodeName": str(index), "NodeManagerAddress": "127.0.0.1",
            "Alive": True, "Resources": {"CPU": 64.0, "memory": float(memory)},
        }
        for index, memory in enumerate(memories(500))
    ]  # fmt: skip
    result = list_nodes(records, {}).values()
    assert len(result) == 500
    assert len({node.server.capacity["memory"] for node in result}) <= 2
