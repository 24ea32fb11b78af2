"""What can be set of the local executor, beside what every executor is made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.executors.local.machine import real_devices
from shadowprice.executors.reading import LOG_BYTES, Reading

_MEMORY: Final = ("auto", "cgroup", "rlimit", "off")
_NAMES: Final = ("cgroup", "devices", "log_bytes", "memory", "users")


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
    reading = Reading(values, _NAMES)
    devices = tuple(filter(None, (one.strip() for one in values.get("devices", "").split(","))))
    if len(set(devices)) < len(devices):
        reading.fault("devices", "it names a device twice", "name each once")
    mend = "write auto, off, or the path of a delegated group"
    settings = Settings(
        reading.matching("cgroup", r"auto|off|/.*", "auto", mend),
        devices or real_devices(),
        reading.log_bytes(),
        reading.choice("memory", _MEMORY),
        reading.path("users"),
    )
    reading.end()
    return settings
