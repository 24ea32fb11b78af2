"""Settings of the Ray executor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.executors.options_reader import DEFAULT_LOG_BYTES, OptionsReader

_NAMES: Final = ("log_bytes", "lost_after", "memory", "node_dir", "patience", "shared")


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Settings of the Ray executor.

    A process counts as lost ``lost_after`` seconds after its node's loss: Ray lets a raylet live
    for 60 s after it lost its head, and its processes with it. ``memory`` is ``rlimit``, which
    limits a process's private memory to its demand, or ``off``. ``node_dir`` is the executor's
    directory on the nodes. If Ray doesn't place a process within ``patience`` seconds, the
    generation is refused. ``shared`` is a directory that the service and all nodes see under the
    same path, for default checkpoint and working directories; empty for the executor's own
    directory.
    """

    log_bytes: int = DEFAULT_LOG_BYTES
    lost_after: float = 60.0
    memory: str = "rlimit"
    node_dir: str = ""
    patience: float = 60.0
    shared: str = ""


def read_settings(values: Mapping[str, str]) -> RaySettings:
    """Parse the settings; raise InputError with all errors."""
    reader = OptionsReader(values, _NAMES)
    settings = RaySettings(
        reader.log_bytes(),
        reader.seconds("lost_after", 60),
        reader.choice("memory", ("rlimit", "off")),
        reader.path("node_dir") or f"/tmp/shadowprice-ray-{os.geteuid()}",  # owner is checked
        reader.seconds("patience", 60),
        reader.path("shared"),
    )
    reader.raise_errors()
    return settings
