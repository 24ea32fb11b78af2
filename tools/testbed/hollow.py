"""Hollow nodes: kubelets of kubemark that pretend to run pods, hundreds of them in one process."""

from __future__ import annotations

import json
from pathlib import Path

from tools.testbed.access import Access, ApiError
from tools.testbed.process import Component

CORES, MEMORY = 32, 256 << 30
"""What each says it has."""

LEASE = 40
"""Seconds that a sign of life holds; each gives one in a quarter of it."""


class Hollow:
    """Nodes ``hollow-0`` to ``hollow-N``, with an API client each, in one process.

    Parameters
    ----------
    folder : Path
        Where they keep their files.
    access : Access
        The API server; each node is the user ``system:node:NAME``.
    count : int
        How many.
    """

    def __init__(self, folder: Path, access: Access, count: int) -> None:
        self.count = count
        self._access = access
        names = [f"hollow-{number}" for number in range(count)]
        file = folder / "hollow.json"
        file.write_text(
            json.dumps(
                {
                    "server": access.url,
                    "certificate": str(access.certificate),
                    "folder": str(folder / "hollow"),
                    "address": "",
                    "cores": CORES,
                    "memory": MEMORY,
                    "labels": {"shadowprice.test/hollow": "true"},
                    "lease": LEASE,
                    "nodes": [
                        {"name": name, "token": access.tokens[f"system:node:{name}"]}
                        for name in names
                    ],
                }
            )
        )
        file.chmod(0o600)
        # Each watches a folder that nothing comes into; a user has few such watches, and who runs
        # beside needs them. In a user namespace of their own they have none, and do without.
        # The kernel's log may be closed to such a namespace; nothing that they do stands in it.
        limit = "echo 0 > /proc/sys/user/max_inotify_instances; mount --bind /dev/null /dev/kmsg"
        spaces = ["unshare", "--user", "--map-root-user", "--mount"]
        before = [*spaces, "sh", "-c", f'{limit}; exec "$@"', "sh"]
        self.component = Component("hollow-nodes", [str(file)], folder, self._ready, before=before)

    def _ready(self) -> bool:
        return self.registered() >= self.count

    def registered(self) -> int:
        """Return how many are ready."""
        try:
            nodes = self._access.ask("GET", "/api/v1/nodes?resourceVersion=0")["items"]
        except (ApiError, OSError):
            return 0
        return sum(
            one["metadata"]["name"].startswith("hollow-")
            and any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in one["status"].get("conditions", ())
            )
            for one in nodes
        )

    def start(self) -> None:
        """Start them, and wait until all are ready."""
        if self.count:
            self.component.start()
            self.component.wait(600.0)

    def stop(self) -> None:
        """End them."""
        self.component.kill()
