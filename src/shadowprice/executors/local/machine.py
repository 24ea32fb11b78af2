"""Dealing out this machine: cores and devices of the slices that a cluster file calls servers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shadowprice.core.amounts import MILLI
from shadowprice.executors.contract import GenerationSpec, ServerSlice
from shadowprice.executors.environment import Process, processes_of
from shadowprice.executors.generations.disk import names
from shadowprice.executors.generations.placing import NoPlaceError

_NVIDIA: Final = Path("/proc/driver/nvidia/gpus")

MOST_STAND_INS: Final = 4_096
"""GPUs of a server that numbers stand for, on a machine that has none."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """What one process gets.

    Parameters
    ----------
    process : Process
        The process.
    cores : tuple of int
        Cores that it may run on; empty for all.
    devices : mapping of str to int
        Devices by name, in thousandths of each.
    told : tuple of str or None
        Devices that it is told of; None where there is nothing to hide or to deal.
    memory : int
        Bytes that it may use, 0 where its job names none.
    """

    process: Process
    cores: tuple[int, ...]
    devices: Mapping[str, int]
    told: tuple[str, ...] | None
    memory: int

    def record(self) -> dict[str, Any]:
        """Return what `Machine.deal` has to know of it later."""
        return {"server": self.process.server, "cores": self.cores, "devices": dict(self.devices)}


def real_devices() -> tuple[str, ...]:
    """Return the GPUs that the service was given, or else those that the driver lists."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if given:
        return tuple(dict.fromkeys(filter(None, (one.strip() for one in given.split(",")))))
    try:
        return tuple(str(number) for number in range(len(names(_NVIDIA))))
    except OSError:
        return ()


class Machine:
    """Cores and devices of this machine, in slices.

    Servers get cores and devices in the order in which they are first named, and keep them. There
    may be more servers than the machine has cores for: they then share cores, in turn. Devices are
    never shared by servers; where the machine has none at all, numbers stand for them, for
    `MOST_STAND_INS` of a server at most.

    Parameters
    ----------
    cores : sequence of int
        Cores to deal out.
    devices : sequence of str
        Devices to deal out; empty where there are none.
    """

    def __init__(self, cores: Sequence[int], devices: Sequence[str]) -> None:
        self._cores = tuple(cores)
        self._devices = tuple(devices)
        self._slices: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        self._next_core = 0
        self._lowest = 0

    def configure(self, servers: Iterable[ServerSlice]) -> None:
        """Take in which servers there are."""
        wanted = {server.name: server for server in servers}
        for name in self._slices.keys() - wanted.keys():
            del self._slices[name]
        taken = {device for _, devices in self._slices.values() for device in devices}
        self._lowest = 0
        for name, server in wanted.items():
            count = -(-server.capacity.get("cpu", 0) // MILLI)
            size = sum(_gpus(server.capacity).values()) // MILLI
            if not self._devices:
                size = min(size, MOST_STAND_INS)
            cores, devices = self._slices.get(name, ((), ()))
            if len(cores) != min(count, len(self._cores)):
                cores = self._take_cores(count)
            if len(devices) != size:
                taken -= {*devices}
                self._lowest = 0 if devices else self._lowest
                devices = self._take_devices(size, taken)
                taken |= {*devices}
            self._slices[name] = (cores, devices)

    def _take_cores(self, count: int) -> tuple[int, ...]:
        many = len(self._cores)
        count = min(count, many)
        taken = tuple(sorted(self._cores[(self._next_core + n) % many] for n in range(count)))
        self._next_core = (self._next_core + count) % many
        return taken

    def _take_devices(self, count: int, taken: set[str]) -> tuple[str, ...]:
        if self._devices:
            return tuple(name for name in self._devices if name not in taken)[:count]
        free: list[str] = []
        while len(free) < count:
            name = str(self._lowest)
            self._lowest += 1
            if name not in taken:
                free.append(name)
        return tuple(free)

    def slice_of(self, cores: Sequence[int]) -> str | None:
        """Return the one server that has all these cores, None where none or several do."""
        fitting = [name for name, (own, _) in self._slices.items() if own and {*cores} <= {*own}]
        return fitting[0] if len(fitting) == 1 else None

    def deal(self, spec: GenerationSpec, held: Iterable[Mapping[str, Any]]) -> tuple[Dealt, ...]:
        """Return what every process of a generation gets.

        Parameters
        ----------
        spec : GenerationSpec
            The generation.
        held : iterable of mapping
            What the processes of other generations have, by their `Dealt.record`.

        Raises
        ------
        NoPlaceError
            If a server is not known, or has no devices left.
        """
        busy_cores: Counter[int] = Counter()
        used: Counter[str] = Counter()
        for one in held:
            busy_cores.update(one["cores"])
            used.update(one["devices"])
        given = {server: list(names) for server, names in spec.devices.items()}
        dealt = []
        for process in processes_of(spec):
            demand = spec.worker if process.role == "worker" else spec.ps
            if process.server not in self._slices:
                raise NoPlaceError(f"this machine carries no server called {process.server!r}")
            cores = self._cores_for(process.server, demand.get("cpu", 0), busy_cores)
            devices = self._devices_for(process.server, demand, used, given.get(process.server))
            used.update(devices)
            own = self._slices[process.server][1]
            told = tuple(devices) if own or self._devices else None
            dealt.append(Dealt(process, cores, devices, told, demand.get("memory", 0)))
        return tuple(dealt)

    def _cores_for(self, server: str, amount: int, busy: Counter[int]) -> tuple[int, ...]:
        own = self._slices[server][0]
        count = -(-amount // MILLI)
        if not own or not count:
            return own
        chosen = tuple(sorted(sorted(own, key=lambda core: (busy[core], core))[:count]))
        busy.update(chosen)
        return chosen

    def _devices_for(
        self,
        server: str,
        demand: Mapping[str, int],
        used: Counter[str],
        given: list[str] | None,
    ) -> dict[str, int]:
        amount = sum(_gpus(demand).values())
        whole, part = divmod(amount, MILLI)
        if not amount:
            return {}
        if given is not None:
            count = whole + bool(part)
            if len(given) < count:
                raise NoPlaceError(f"{server} was dealt fewer devices than its processes ask for")
            chosen, given[:] = given[:count], given[count:]
            return dict.fromkeys(chosen, MILLI)
        own = self._slices[server][1]
        free = [name for name in own if not used[name]]
        if len(free) < whole:
            raise NoPlaceError(
                f"{server} has {len(own)} GPUs on this machine, {len(free)} of them free, and a "
                f"process asks for {amount / MILLI:g}"
            )
        chosen_devices = dict.fromkeys(free[:whole], MILLI)
        if part:
            room = [n for n in own if n not in chosen_devices and used[n] + part <= MILLI]
            if not room:
                raise NoPlaceError(f"{server} has no GPU with {part / MILLI:g} of it free")
            chosen_devices[max(room, key=lambda name: used[name])] = part  # the fullest that fits
        return chosen_devices


def _gpus(amounts: Mapping[str, int]) -> dict[str, int]:
    return {
        name: amount for name, amount in amounts.items() if name == "gpu" or name.startswith("gpu/")
    }
