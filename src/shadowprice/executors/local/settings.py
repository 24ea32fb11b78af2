"""What can be set of the local executor, beside what every executor is made with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import closest, shown
from shadowprice.executors.local.machine import real_devices

_MEMORY: Final = ("auto", "cgroup", "rlimit", "off")
_NAMES: Final = ("cgroup", "devices", "log_bytes", "memory", "users")
LOG_BYTES: Final = 8 << 20
_MOST_LOG_BYTES: Final = 1 << 40
_LEAST_LOG_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set.

    Parameters
    ----------
    cgroup : str
        Path of a control group that was delegated to this user, ``auto`` for the service's own,
        ``off`` for none.
    devices : tuple of str
        GPUs to deal out, by number or UUID; by default those that the driver lists.
    log_bytes : int
        Most bytes kept of what one process writes.
    memory : str
        How a process is held to the memory that its job asks for: ``cgroup``, ``rlimit`` (its
        private memory), ``auto`` for the first that is allowed, ``off``.
    users : str
        Where jobs of other users have their files; empty for beside the data directory.
    """

    cgroup: str = "auto"
    devices: tuple[str, ...] = ()
    log_bytes: int = LOG_BYTES
    memory: str = "auto"
    users: str = ""


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
    cgroup = values.get("cgroup", "auto")
    if cgroup not in {"auto", "off"} and not os.path.isabs(cgroup):  # noqa: PTH117  # text
        mend = "write auto, off, or the path of a delegated group"
        faults.append(Fault("--executor-set cgroup", f"{shown(cgroup)} is no such", mend))
    memory = values.get("memory", "auto")
    if memory not in _MEMORY:
        mend = f"one of: {', '.join(_MEMORY)}"
        faults.append(Fault("--executor-set memory", f"{shown(memory)} is no such", mend))
    written = values.get("log_bytes", str(LOG_BYTES))
    log_bytes = int(written) if written.isdecimal() and len(written) < 16 else 0
    if not _LEAST_LOG_BYTES <= log_bytes <= _MOST_LOG_BYTES:
        mend = f"write a number of bytes from {_LEAST_LOG_BYTES:,} on"
        faults.append(Fault("--executor-set log_bytes", f"{shown(written)} is no such", mend))
    devices = tuple(filter(None, (one.strip() for one in values.get("devices", "").split(","))))
    if len(set(devices)) < len(devices):
        faults.append(Fault("--executor-set devices", "it names a device twice", "name each once"))
    users = values.get("users", "")
    if users and not os.path.isabs(users):  # noqa: PTH117  # text
        mend = "write a path that begins with /"
        faults.append(Fault("--executor-set users", f"{shown(users)} is no such", mend))
    if faults:
        raise InputError(faults)
    return Settings(cgroup, devices or real_devices(), log_bytes, memory, users)
