"""Allocation of this machine's cores and devices to servers, which are slices of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shadowprice.core.amounts import MILLI
from shadowprice.core.devices import whole_parts
from shadowprice.executors.contract import GenerationSpec, ServerInfo
from shadowprice.executors.generations.disk import list_names
from shadowprice.executors.processes import (
    PlacementError,
    Process,
    gpu_millis,
    list_processes,
    process_demand,
)

_NVIDIA: Final = Path("/proc/driver/nvidia/gpus")
_NVIDIA_NODES: Final = Path("/dev")
_AMD: Final = Path("/sys/class/kfd/kfd/topology/nodes")

MAX_NUMBER_DIGITS: Final = 9  # maximum digits of a device number in a variable
MAX_FAKE_DEVICES: Final = 4_096  # maximum simulated GPUs of a server, on a machine without GPUs


@dataclass(frozen=True, slots=True)
class ProcessAllocation:
    """Cores, devices and memory allocated to one process."""

    process: Process
    cores: tuple[int, ...]  # cores that it may run on; empty for all
    devices: Mapping[str, int]  # thousandths of each device, by its name
    visible_devices: tuple[str, ...] | None  # None if CUDA_VISIBLE_DEVICES isn't set
    memory: int  # bytes, 0 for no limit

    def record(self) -> dict[str, Any]:
        """Return the JSON-compatible part that later allocations need."""
        return {"server": self.process.server, "cores": self.cores, "devices": dict(self.devices)}


def physical_devices() -> tuple[str, ...] | None:
    """Return the GPUs that this process may use, by number or UUID.

    These are the GPUs that a driver lists, without those that environment variables hide. Without a
    driver, only variables name GPUs. The result is None if neither names any.
    """
    nvidia = _nvidia_devices()
    container_value = os.environ.get("NVIDIA_VISIBLE_DEVICES", "all").strip()
    # Some container runtimes select GPUs by device nodes, and set the variable to void or a path.
    is_off = container_value == "void" or container_value.startswith("/")
    if is_off and (nodes := _nvidia_nodes()):
        nvidia, container_value, is_off = nodes, "all", False
    devices = nvidia or _amd_devices() or None
    hides_all = is_off or container_value in {"", "none"}
    # In a container the driver lists only the selected devices, numbered from 0. So the variable
    # must not select among them again.
    is_container = 0 < len(nvidia) <= len(container_value.split(","))
    is_amd = bool(devices) and not nvidia
    if not is_amd and (hides_all or not (container_value == "all" or is_container)):
        devices = _visible_devices(devices, "" if hides_all else container_value)
    if not nvidia and "ROCR_VISIBLE_DEVICES" in os.environ:
        devices = _visible_devices(devices, os.environ["ROCR_VISIBLE_DEVICES"])
    process_values = [
        _visible_devices(devices, os.environ[name])
        for name in ("CUDA_VISIBLE_DEVICES", *(() if nvidia else ("HIP_VISIBLE_DEVICES",)))
        if name in os.environ
    ]
    for other in process_values[1:]:
        process_values[0] = tuple(name for name in process_values[0] if name in other)
    return process_values[0] if process_values else devices


def _visible_devices(devices: tuple[str, ...] | None, text: str) -> tuple[str, ...]:
    """Return the devices that a variable's value shows: numbers of ``devices``, or UUIDs.

    ``devices`` is None if the machine's devices are unknown. As in CUDA and ROCm, the first invalid
    entry hides itself and all entries after it. So does the first entry that is a UUID among
    numbers, or a number among UUIDs, because both may name the same device.
    """
    visible: dict[str, None] = {}
    names = [entry.strip() for entry in text.split(",")]
    are_numbers = names[0].isdigit()
    for name in names:
        if are_numbers and name.isascii() and name.isdigit() and len(name) <= MAX_NUMBER_DIGITS:
            index = int(name)
            if devices is not None and index >= len(devices):
                break
            visible[str(index) if devices is None else devices[index]] = None
        elif not are_numbers and name.startswith(("GPU-", "MIG-")):
            visible[name] = None
        else:
            break
    return tuple(visible)


def _nvidia_devices() -> tuple[str, ...]:
    try:
        return tuple(str(number) for number in range(len(list_names(_NVIDIA))))
    except OSError:
        return ()


def _nvidia_nodes() -> tuple[str, ...]:
    """Return the numbers of the GPUs with a device node, as a container's runtime injects them."""
    return tuple(str(number) for number, _ in enumerate(_NVIDIA_NODES.glob("nvidia[0-9]*")))


def _amd_devices() -> tuple[str, ...]:
    count = 0
    for node in _AMD.glob("*/gpu_id"):
        try:
            count += node.read_text(encoding="ascii").strip() not in {"", "0"}  # 0 for CPUs
        except (OSError, ValueError):
            continue
    return tuple(str(number) for number in range(count))


class MachineAllocator:
    """Divides the cores and devices of this machine among servers, and allocates them.

    A server keeps its cores and devices while its capacity stays the same. If the servers have more
    cores than the machine, they share cores in rotation. Servers never share devices. After a
    restart, a server first gets the devices that its running generations use. ``devices`` is empty
    if all are hidden from this process. If it is None, the machine has none, and each server has up
    to `MAX_FAKE_DEVICES` simulated devices.
    """

    def __init__(self, cores: Sequence[int], devices: Sequence[str] | None) -> None:
        self._cores = tuple(cores)
        self._devices = None if devices is None else tuple(devices)
        self._slices: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        self._available: Mapping[str, Mapping[str, int]] = {}
        self._next_core = 0
        self._next_fake = 0  # all simulated devices with smaller numbers are assigned

    def set_servers(
        self, servers: Iterable[ServerInfo], held: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        """Set all servers; ``held`` has the `ProcessAllocation.record` of running processes."""
        by_name = {server.name: server for server in servers}
        for name in self._slices.keys() - by_name.keys():
            del self._slices[name]
        taken = {device for _, devices in self._slices.values() for device in devices}
        self._next_fake = 0
        new = by_name.keys() - self._slices.keys()
        held_by_server = self._held_devices(new, taken, held)
        taken.update(device for devices in held_by_server.values() for device in devices)
        for name, server in by_name.items():
            core_count = -(-server.capacity.get("cpu", 0) // MILLI)
            device_count = gpu_millis(server.capacity) // MILLI
            if self._devices is None:
                device_count = min(device_count, MAX_FAKE_DEVICES)
            cores, devices = self._slices.get(name, ((), ()))
            if len(cores) != min(core_count, len(self._cores)):
                cores = self._assign_cores(core_count)
            if len(devices) != device_count:
                kept = held_by_server.get(name, ())
                taken -= {*devices, *kept[device_count:]}
                self._next_fake = 0 if devices else self._next_fake  # smaller numbers are free now
                kept = kept[:device_count]
                devices = (*kept, *self._assign_devices(device_count - len(kept), taken))
                taken |= {*devices}
            self._slices[name] = (cores, devices)
        self._available = {
            name: {"gpu": len(self._slices[name][1]) * MILLI}
            for name, server in by_name.items()
            if gpu_millis(server.capacity)
        }

    def available(self) -> Mapping[str, Mapping[str, int]]:
        """Return the devices of each server with GPUs; see `LimitsServers.available`."""
        return self._available

    def _held_devices(
        self, servers: Set[str], taken: Set[str], held: Iterable[Mapping[str, Any]]
    ) -> dict[str, tuple[str, ...]]:
        """Return the devices that generations on ``servers`` hold, each for one server only."""
        owners: dict[str, str] = {}
        for record in held:
            for device in record["devices"] if record["server"] in servers else ():
                exists = self._devices is None or device in self._devices
                if exists and device not in taken:
                    owners.setdefault(device, record["server"])
        by_server: dict[str, tuple[str, ...]] = {}
        for device, server in owners.items():
            by_server[server] = (*by_server.get(server, ()), device)
        return by_server

    def _assign_cores(self, count: int) -> tuple[int, ...]:
        total = len(self._cores)
        count = min(count, total)
        taken = tuple(sorted(self._cores[(self._next_core + n) % total] for n in range(count)))
        self._next_core = (self._next_core + count) % total
        return taken

    def _assign_devices(self, count: int, taken: set[str]) -> tuple[str, ...]:
        if self._devices is not None:
            return tuple(name for name in self._devices if name not in taken)[:count]
        free: list[str] = []
        while len(free) < count:
            name = str(self._next_fake)
            self._next_fake += 1
            if name not in taken:
                free.append(name)
        return tuple(free)

    def slice_of(self, cores: Sequence[int]) -> str | None:
        """Return the server that has all these cores; None unless exactly one has."""
        matching = [name for name, (own, _) in self._slices.items() if own and {*cores} <= {*own}]
        return matching[0] if len(matching) == 1 else None

    def allocate(
        self, spec: GenerationSpec, held: Iterable[Mapping[str, Any]]
    ) -> tuple[ProcessAllocation, ...]:
        """Allocate cores and devices to every process, or raise `PlacementError`.

        ``held`` has the `ProcessAllocation.record` of running processes.
        """
        busy_cores: Counter[int] = Counter()  # number of processes on each core
        used: Counter[str] = Counter()  # thousandths of each device
        for record in held:
            busy_cores.update(record["cores"])
            used.update(record["devices"])
        assigned = {server: list(names) for server, names in spec.devices.items()}
        allocations = []
        for process in list_processes(spec):
            demand = process_demand(spec, process)
            if process.server not in self._slices:
                raise PlacementError(f"this machine has no server named {process.server!r}")
            cores = self._cores_for(process.server, demand.get("cpu", 0), busy_cores)
            devices = self._devices_for(process.server, demand, used, assigned.get(process.server))
            used.update(devices)
            own = self._slices[process.server][1]
            # On a machine without GPUs, jobs of servers without GPUs see no variable at all.
            visible = tuple(devices) if own or self._devices is not None else None
            allocations.append(
                ProcessAllocation(process, cores, devices, visible, demand.get("memory", 0))
            )
        return tuple(allocations)

    def _cores_for(self, server: str, amount: int, busy: Counter[int]) -> tuple[int, ...]:
        own = self._slices[server][0]
        count = -(-amount // MILLI)
        if not own or not count:
            return own
        # Cores may be shared, so prefer those with the fewest processes.
        chosen = tuple(sorted(sorted(own, key=lambda core: (busy[core], core))[:count]))
        busy.update(chosen)
        return chosen

    def _devices_for(
        self,
        server: str,
        demand: Mapping[str, int],
        used: Counter[str],
        assigned: list[str] | None,
    ) -> dict[str, int]:
        """Return thousandths of devices for a process; remove them from ``assigned`` if given."""
        amount = whole_parts(gpu_millis(demand))
        whole, fraction = divmod(amount, MILLI)
        if not amount:
            return {}
        if assigned is not None:
            count = whole + bool(fraction)
            if len(assigned) < count:
                raise PlacementError(f"{server} got fewer devices than its processes need")
            chosen, assigned[:] = assigned[:count], assigned[count:]
            return dict.fromkeys(chosen, MILLI)
        own = self._slices[server][1]
        free = [name for name in own if not used[name]]
        if len(free) < whole:
            raise PlacementError(
                f"{server} has {len(own)} GPUs on this machine, {len(free)} of them free, and a "
                f"process requests {amount / MILLI:g}"
            )
        chosen_devices = dict.fromkeys(free[:whole], MILLI)
        if fraction:
            candidates = [n for n in own if n not in chosen_devices and used[n] + fraction <= MILLI]
            if not candidates:
                raise PlacementError(f"{server} has no GPU with {fraction / MILLI:g} of it free")
            chosen_devices[max(candidates, key=lambda name: used[name])] = fraction  # best fit
        return chosen_devices
