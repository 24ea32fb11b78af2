"""What can be set of the Ray executor, beside what every executor is made with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.executors.reading import LOG_BYTES, Reading

_NAMES: Final = ("log_bytes", "lost_after", "memory", "node_dir", "patience", "shared")


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set.

    Parameters
    ----------
    log_bytes : int
        Most bytes kept of what one process writes.
    lost_after : float
        Seconds from when a node is gone until what ran there is taken for ended. Ray lets a raylet
        live for 60 s that has lost its head, and what it runs with it.
    memory : str
        ``rlimit``: a process is held to the private memory that its job asks for; ``off``.
    node_dir : str
        Where nodes keep what runs there.
    patience : float
        Seconds that Ray has to give a process its place; then the generation is refused.
    shared : str
        A directory that the service and all nodes see under the same path: checkpoints and work of
        jobs that name no other place. Empty for the executor's own.
    """

    log_bytes: int = LOG_BYTES
    lost_after: float = 60.0
    memory: str = "rlimit"
    node_dir: str = ""
    patience: float = 60.0
    shared: str = ""


def read_settings(values: Mapping[str, str]) -> Settings:
    """Return what is set.

    Raises
    ------
    InputError
        If a name is unknown or a value is wrong, listing all of them.
    """
    reading = Reading(values, _NAMES)
    settings = Settings(
        reading.log_bytes(),
        reading.seconds("lost_after", 60),
        reading.choice("memory", ("rlimit", "off")),
        reading.path("node_dir") or f"/tmp/shadowprice-ray-{os.geteuid()}",  # its owner is checked
        reading.seconds("patience", 60),
        reading.path("shared"),
    )
    reading.end()
    return settings
