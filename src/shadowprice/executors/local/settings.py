"""Settings of the local executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.executors.local.machine import physical_devices
from shadowprice.executors.options_reader import DEFAULT_LOG_BYTES, OptionsReader

_MEMORY: Final = ("auto", "cgroup", "rlimit", "off")
_NAMES: Final = ("cgroup", "devices", "log_bytes", "memory", "users")


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Settings of the local executor.

    ``cgroup`` is the path of a control group delegated to this user, ``auto`` for the service's
    own, ``off`` for none. ``devices`` are GPUs to allocate, by number or UUID; None if the machine
    has none, so that they are simulated. ``memory`` enforces a process's memory demand: ``cgroup``,
    ``rlimit`` (limits private memory), ``auto`` for the first that is permitted, ``off``. ``users``
    is the directory for the files of jobs of other users; if empty, next to the data directory.
    """

    cgroup: str = "auto"
    devices: tuple[str, ...] | None = None
    log_bytes: int = DEFAULT_LOG_BYTES
    memory: str = "auto"
    users: str = ""


def read_settings(values: Mapping[str, str]) -> LocalSettings:
    """Parse the settings; raise InputError with all errors."""
    reader = OptionsReader(values, _NAMES)
    devices = tuple(filter(None, (name.strip() for name in values.get("devices", "").split(","))))
    if len(set(devices)) < len(devices):
        reader.add_error("devices", "it names a device twice", "name each once")
    hint = "write auto, off, or the path of a delegated group"
    settings = LocalSettings(
        reader.matching("cgroup", r"auto|off|/.*", "auto", hint),
        devices or physical_devices(),
        reader.log_bytes(),
        reader.choice("memory", _MEMORY),
        reader.path("users"),
    )
    reader.raise_errors()
    return settings
