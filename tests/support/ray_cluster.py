"""A Ray cluster of several raylets on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# A head requires a token if it finds one, but a node that joins doesn't send it. Ray writes one
# into the home directory, so a machine on which these tests ran before has it.
os.environ["RAY_AUTH_MODE"] = "disabled"
# Ray runs its workers at niceness 15, so on a busy machine they would hardly run at all.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # the name that Ray reads

ADDRESS = "127.0.0.2"
"""A loopback address that Ray doesn't replace by the address of this machine."""

NODES: Mapping[str, Mapping[str, Any]] = {
    "one": {"num_cpus": 2, "num_gpus": 2, "memory": 1 << 30, "labels": {"zone": "a"}},
    "two": {"num_cpus": 1, "num_gpus": 1},
}


class RayCluster:
    """A head without resources, and named nodes.

    `nodes` holds the arguments of `ray.cluster_utils.Cluster.add_node` for each node, `head` those
    of the head.
    """

    def __init__(self, nodes: Mapping[str, Mapping[str, Any]] = NODES, **head: Any) -> None:
        from ray.cluster_utils import Cluster

        self.wanted = dict(nodes)
        self.nodes: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.cluster = Cluster()
            self._add("head", num_cpus=0, include_dashboard=False, **head)
        self.restore()

    @property
    def address(self) -> str:
        """The address for drivers."""
        return str(self.cluster.address)

    def _add(self, name: str, **more: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for attempt in range(5):
                try:
                    return self.cluster.add_node(
                        wait=False,
                        node_name=name,
                        node_ip_address=ADDRESS,
                        object_store_memory=80 << 20,
                        # One process a node, for output that Shadowprice doesn't read.
                        include_log_monitor=False,
                        **more,
                    )
                except Exception as error:  # Ray gives a raylet 30 s, which a busy machine exceeds
                    if "timed out during startup" not in str(error) or attempt == 4:
                        raise
        raise AssertionError

    def restore(self) -> None:
        """Start the missing nodes."""
        for name in self.wanted.keys() - self.nodes.keys():
            self.nodes[name] = self._add(name, **self.wanted[name])

    def kill(self, name: str) -> None:
        """Kill the raylet of a node."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def shutdown(self) -> None:
        """Stop every process of the cluster."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in list(self.nodes):
                self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)
            self.cluster.remove_node(self.cluster.head_node, allow_graceful=False)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster shared by the tests of a session, because it takes half a minute to start."""
    pytest.importorskip("ray")
    cluster = RayCluster()
    yield cluster
    cluster.shutdown()
