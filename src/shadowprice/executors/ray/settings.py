"""What can be set of the Ray executor, beside what every executor is made with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import closest, shown
from shadowprice.executors.local.settings import LOG_BYTES

_NAMES: Final = ("log_bytes", "lost_after", "memory", "node_dir", "patience", "shared")
_MOST_LOG_BYTES: Final = 1 << 40
_LEAST_LOG_BYTES: Final = 1024
_MOST_SECONDS: Final = 86_400


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
    faults = []
    for name in values:
        if name not in _NAMES:
            likely = closest(name, _NAMES)
            mend = f"did you mean {likely!r}?" if likely else f"one of: {', '.join(_NAMES)}"
            faults.append(Fault(f"--executor-set {shown(name)}", "unknown setting", mend))
    for name in ("node_dir", "shared"):
        given = values.get(name, "")
        if given and not os.path.isabs(given):  # noqa: PTH117  # text
            mend = "write an absolute path"
            faults.append(Fault(f"--executor-set {name}", f"{shown(given)} is no such", mend))
    memory = values.get("memory", "rlimit")
    if memory not in {"rlimit", "off"}:
        mend = "one of: rlimit, off"
        faults.append(Fault("--executor-set memory", f"{shown(memory)} is no such", mend))
    written = values.get("log_bytes", str(LOG_BYTES))
    log_bytes = int(written) if written.isdecimal() and len(written) < 16 else 0
    if not _LEAST_LOG_BYTES <= log_bytes <= _MOST_LOG_BYTES:
        mend = f"write a number of bytes from {_LEAST_LOG_BYTES:,} on"
        faults.append(Fault("--executor-set log_bytes", f"{shown(written)} is no such", mend))
    spans = {}
    for name in ("lost_after", "patience"):
        written = values.get(name, "60")
        spans[name] = int(written) if written.isdecimal() and len(written) < 8 else -1
        if not 1 <= spans[name] <= _MOST_SECONDS:
            mend = f"write seconds, from 1 to {_MOST_SECONDS:,}"
            faults.append(Fault(f"--executor-set {name}", f"{shown(written)} is no such", mend))
    if faults:
        raise InputError(faults)
    return Settings(
        log_bytes,
        float(spans["lost_after"]),
        memory,
        values.get("node_dir", "")
        or f"/tmp/shadowprice-ray-{os.geteuid()}",  # its owner is checked
        float(spans["patience"]),
        values.get("shared", ""),
    )
