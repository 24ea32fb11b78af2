"""Devices of the servers of one machine."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from shadowprice.core.amounts import MILLI
from shadowprice.core.program import Program
from shadowprice.executors.contract import GenerationSpec, ServerAllocation, ServerInfo
from shadowprice.executors.local import machine as machines
from shadowprice.executors.local.machine import MAX_FAKE_DEVICES, MachineAllocator
from shadowprice.executors.processes import PlacementError


def servers(**gpus: int) -> list[ServerInfo]:
    return [ServerInfo(name, {"gpu": count * MILLI}) for name, count in gpus.items()]


def dealt(machine: MachineAllocator) -> dict[str, tuple[str, ...]]:
    return {name: devices for name, (_, devices) in machine._slices.items()}


def test_numbers_stand_for_devices_and_are_kept() -> None:
    machine = MachineAllocator([0, 1], None)
    machine.set_servers(servers(one=2, two=3))
    assert dealt(machine) == {"one": ("0", "1"), "two": ("2", "3", "4")}
    machine.set_servers(servers(two=3, three=3))
    assert dealt(machine) == {"two": ("2", "3", "4"), "three": ("0", "1", "5")}
    machine.set_servers(servers(two=1, three=3, four=1))
    assert dealt(machine) == {"two": ("2",), "three": ("0", "1", "5"), "four": ("3",)}


def test_devices_that_are_there_are_dealt_once() -> None:
    machine = MachineAllocator([0], ("a", "b", "c"))
    machine.set_servers(servers(one=2, two=3))
    assert dealt(machine) == {"one": ("a", "b"), "two": ("c",)}
    machine.set_servers(servers(two=3))
    assert set(dealt(machine)["two"]) == {"a", "b", "c"}


def test_only_whole_devices_that_exist_are_available() -> None:
    machine = MachineAllocator([0], ("a", "b", "c"))
    machine.set_servers([*servers(one=2, two=3), ServerInfo("none", {"cpu": MILLI})])
    assert machine.available() == {"one": {"gpu": 2 * MILLI}, "two": {"gpu": MILLI}}
    simulated = MachineAllocator([0], None)
    simulated.set_servers([ServerInfo("one", {"gpu": 2 * MILLI + 500}), *servers(two=5_000)])
    assert simulated.available() == {
        "one": {"gpu": 2 * MILLI},
        "two": {"gpu": MAX_FAKE_DEVICES * MILLI},
    }


def test_servers_without_bound_take_neither_memory_nor_time() -> None:
    machine = MachineAllocator([0], None)
    began = time.process_time()
    tracemalloc.start()
    machine.set_servers(servers(huge=2**31, **{f"small-{index}": 8 for index in range(5_000)}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20
    assert time.process_time() - began < 5
    result = dealt(machine)
    assert len(result["huge"]) == MAX_FAKE_DEVICES
    assert (
        len({name for devices in result.values() for name in devices}) == MAX_FAKE_DEVICES + 40_000
    )


def _spec(server: str, gpus: int) -> GenerationSpec:
    return GenerationSpec(
        command=1,
        job="job",
        generation=1,
        placement=(ServerAllocation(server, 1),),
        program=Program(("true",)),
        worker={"gpu": gpus * MILLI},
    )


_VARIABLES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "hip": "HIP_VISIBLE_DEVICES",
    "rocr": "ROCR_VISIBLE_DEVICES",
    "nvidia": "NVIDIA_VISIBLE_DEVICES",
}


@pytest.mark.parametrize(
    ("nvidia_gpus", "amd_gpus", "environment", "expected"),
    [
        (0, 0, {}, None),  # numbers stand for devices
        (4, 0, {}, ("0", "1", "2", "3")),
        (4, 0, {"cuda": "3,1"}, ("3", "1")),
        (4, 0, {"cuda": ""}, ()),
        (4, 0, {"cuda": "-1"}, ()),
        (4, 0, {"cuda": "0, -1, 2"}, ("0",)),  # an invalid number hides those after it
        (4, 0, {"cuda": "1,7,2"}, ("1",)),
        (4, 0, {"cuda": "1,GPU-a,2"}, ("1",)),  # may be the same device
        (4, 0, {"cuda": "GPU-a,1,GPU-b"}, ("GPU-a",)),
        (4, 0, {"cuda": "1," + "2" * 5_000}, ("1",)),
        (0, 0, {"cuda": "9" * 5_000}, ()),
        (4, 0, {"cuda": "GPU-a,MIG-b"}, ("GPU-a", "MIG-b")),
        (4, 0, {"hip": "0"}, ("0", "1", "2", "3")),  # the other vendor's
        (4, 0, {"nvidia": "2,3"}, ("2", "3")),
        (4, 0, {"nvidia": "2,3", "cuda": "1"}, ("3",)),  # a number of the selected ones
        (1, 0, {"nvidia": "3"}, ("0",)),  # a container, whose driver lists the selected one
        (4, 0, {"nvidia": "all"}, ("0", "1", "2", "3")),
        (1, 0, {"nvidia": "none"}, ()),
        (1, 0, {"nvidia": "void"}, ()),
        (0, 4, {}, ("0", "1", "2", "3")),
        (0, 4, {"nvidia": "void"}, ("0", "1", "2", "3")),  # the other vendor's
        (0, 4, {"nvidia": "0", "rocr": "1,3"}, ("1", "3")),
        (0, 4, {"rocr": "1,3"}, ("1", "3")),
        (0, 4, {"rocr": "1,3", "hip": "1"}, ("3",)),
        (0, 4, {"hip": "1,2", "cuda": "2,3"}, ("2",)),
        (0, 4, {"rocr": ""}, ()),
        (0, 0, {"cuda": "0,1"}, ("0", "1")),
        (0, 0, {"cuda": ""}, ()),
        (0, 0, {"rocr": "2"}, ("2",)),
        (0, 0, {"hip": "2,5"}, ("2", "5")),
        (0, 0, {"nvidia": "0,1"}, ("0", "1")),
    ],
)
def test_hidden_devices_are_not_allocated(
    nvidia_gpus: int,
    amd_gpus: int,
    environment: dict[str, str],
    expected: tuple[str, ...] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvidia, amd = tmp_path / "nvidia", tmp_path / "amd"
    for index in range(nvidia_gpus):
        (nvidia / f"0000:0{index}:00.0").mkdir(parents=True)
    for index in range(amd_gpus + 1 if amd_gpus else 0):
        (amd / str(index)).mkdir(parents=True)
        (amd / str(index) / "gpu_id").write_text(f"{index * 1000}\n")  # the first is the CPU
    monkeypatch.setattr(machines, "_NVIDIA", nvidia)
    monkeypatch.setattr(machines, "_AMD", amd)
    monkeypatch.setattr(machines, "_NVIDIA_NODES", tmp_path)
    for key, name in _VARIABLES.items():
        monkeypatch.delenv(name, raising=False)
        if key in environment:
            monkeypatch.setenv(name, environment[key])
    devices = machines.physical_devices()
    assert devices == expected
    machine = MachineAllocator([0], devices)
    machine.set_servers(servers(one=8))
    count = 8 if expected is None else len(expected)
    assert machine.available() == {"one": {"gpu": count * MILLI}}
    assert dealt(machine)["one"] == (expected if expected is not None else tuple("01234567"))
    # Without its own list, a job would find the hidden devices.
    [allocation] = machine.allocate(_spec("one", gpus=min(count, 1)), ())
    assert allocation.visible_devices == (dealt(machine)["one"][:1] if count else ())


@pytest.mark.parametrize("value", ["void", "/var/run/nvidia-container-devices"])
@pytest.mark.parametrize("listed", [0, 2, 8])  # the driver may list those of the host
def test_devices_that_a_container_runtime_injects_are_those_with_nodes(
    value: str, listed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia = tmp_path / "nvidia"
    for index in range(listed):
        (nvidia / f"0000:0{index}:00.0").mkdir(parents=True)
    for name in _VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machines, "_NVIDIA", nvidia)
    monkeypatch.setattr(machines, "_AMD", tmp_path / "amd")
    monkeypatch.setattr(machines, "_NVIDIA_NODES", tmp_path)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", value)
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert machines.physical_devices() == ()
    for name in ("nvidia3", "nvidia12"):
        (tmp_path / name).touch()
    assert machines.physical_devices() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machines.physical_devices() == ("1",)


@pytest.mark.parametrize("devices", [("0", "1", "2"), None])
def test_after_a_restart_servers_get_the_devices_that_their_generations_hold(
    devices: tuple[str, ...] | None,
) -> None:
    before = MachineAllocator([0], devices)
    before.set_servers(servers(a=1, b=1, c=1))
    held = [
        allocation.record()
        for name in ("a", "c")
        for allocation in before.allocate(_spec(name, gpus=1), ())
    ]
    after = MachineAllocator([0], devices)
    after.set_servers(servers(a=1, c=1, d=1), held)
    assert dealt(after) == {"a": ("0",), "c": ("2",), "d": ("1",)}
    [allocation] = after.allocate(_spec("d", gpus=1), held)
    assert allocation.visible_devices == ("1",)
    with pytest.raises(PlacementError):
        after.allocate(_spec("c", gpus=1), held)


def test_a_server_that_shrank_keeps_devices_that_its_generations_hold() -> None:
    before = MachineAllocator([0], ("a", "b", "c"))
    before.set_servers(servers(one=1, two=2))
    held = [allocation.record() for allocation in before.allocate(_spec("two", gpus=2), ())]
    after = MachineAllocator([0], ("a", "b", "c"))
    after.set_servers(servers(two=1, three=1, one=1), held)
    assert dealt(after) == {"two": ("b",), "three": ("a",), "one": ("c",)}
    gone = MachineAllocator([0], ("c",))  # a device that this machine no longer has
    gone.set_servers(servers(two=2, three=1), held)
    assert dealt(gone) == {"two": ("c",), "three": ()}
