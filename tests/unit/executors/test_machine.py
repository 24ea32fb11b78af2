"""Which devices the servers of one machine get."""

from __future__ import annotations

import time
import tracemalloc

from shadowprice.core.amounts import MILLI
from shadowprice.executors.contract import ServerInfo
from shadowprice.executors.local.machine import MAX_FAKE_DEVICES, MachineAllocator


def servers(**gpus: int) -> list[ServerInfo]:
    return [ServerInfo(name, {"gpu": count * MILLI}) for name, count in gpus.items()]


def dealt(machine: MachineAllocator) -> dict[str, tuple[str, ...]]:
    return {name: devices for name, (_, devices) in machine._slices.items()}


def test_numbers_stand_for_devices_and_are_kept() -> None:
    machine = MachineAllocator([0, 1], ())
    machine.configure(servers(one=2, two=3))
    assert dealt(machine) == {"one": ("0", "1"), "two": ("2", "3", "4")}
    machine.configure(servers(two=3, three=3))
    assert dealt(machine) == {"two": ("2", "3", "4"), "three": ("0", "1", "5")}
    machine.configure(servers(two=1, three=3, four=1))
    assert dealt(machine) == {"two": ("2",), "three": ("0", "1", "5"), "four": ("3",)}


def test_devices_that_are_there_are_dealt_once() -> None:
    machine = MachineAllocator([0], ("a", "b", "c"))
    machine.configure(servers(one=2, two=3))
    assert dealt(machine) == {"one": ("a", "b"), "two": ("c",)}
    machine.configure(servers(two=3))
    assert set(dealt(machine)["two"]) == {"a", "b", "c"}


def test_only_whole_devices_that_exist_are_available() -> None:
    machine = MachineAllocator([0], ("a", "b", "c"))
    machine.configure([*servers(one=2, two=3), ServerInfo("none", {"cpu": MILLI})])
    assert machine.available() == {"one": {"gpu": 2 * MILLI}, "two": {"gpu": MILLI}}
    simulated = MachineAllocator([0], ())
    simulated.configure([ServerInfo("one", {"gpu": 2 * MILLI + 500}), *servers(two=5_000)])
    assert simulated.available() == {
        "one": {"gpu": 2 * MILLI},
        "two": {"gpu": MAX_FAKE_DEVICES * MILLI},
    }


def test_servers_without_bound_take_neither_memory_nor_time() -> None:
    machine = MachineAllocator([0], ())
    began = time.process_time()
    tracemalloc.start()
    machine.configure(servers(huge=2**31, **{f"small-{at}": 8 for at in range(5_000)}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20
    assert time.process_time() - began < 5
    found = dealt(machine)
    assert len(found["huge"]) == MAX_FAKE_DEVICES
    assert (
        len({name for devices in found.values() for name in devices}) == MAX_FAKE_DEVICES + 40_000
    )
