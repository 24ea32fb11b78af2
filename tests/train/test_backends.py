"""The transport of tensors depends on the device of a process.

NCCL needs GPUs. Without one, these tests check the choice and the calls of torch. With one, all
tests of training use NCCL.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from shadowprice.training import TrainingError, generation
from shadowprice.training.servers import pairs

pytestmark = pytest.mark.train


def with_gpus(monkeypatch: pytest.MonkeyPatch, *, nccl: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)


@pytest.fixture
def process_variables(monkeypatch: pytest.MonkeyPatch) -> generation.Generation:
    """The environment of the second of two processes."""
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # restored, because joining sets it
    return generation.current()


def test_without_a_gpu_it_is_gloo(
    process_variables: generation.Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert process_variables.device.type == "cpu"
    assert generation._choose_backend(0, 1, dist.HashStore()) == "gloo"


@pytest.mark.parametrize(
    ("gpus", "backend", "why"),
    [
        ({"0": "here 0", "1": "here 1"}, "nccl", ""),
        ({"0": "here 0", "1": "there 0"}, "nccl", ""),
        ({"0": "here 0", "1": "here 0"}, "gloo", "(some share one)"),
        ({"0": "here 0", "1": ""}, "gloo", "(1 have none)"),
        ({"0": "", "1": "here 0"}, "gloo", "(1 have none)"),
        ({"0": "", "1": ""}, "gloo", ""),
    ],
)
def test_it_is_nccl_where_every_process_has_a_gpu_of_its_own(
    process_variables: generation.Generation,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    gpus: dict[str, str],
    backend: str,
    why: str,
) -> None:
    store = dist.HashStore()
    results = []
    for rank in (0, 1):  # the first would wait for the other
        dist.PrefixStore("gpus", store).set(str(1 - rank), gpus[str(1 - rank)])
        monkeypatch.setattr(generation, "_own_gpu", lambda own=gpus[str(rank)]: own)
        results.append(generation._choose_backend(rank, 2, store))
    assert results == [backend, backend]
    said = capfd.readouterr().err  # by one of them
    assert said.count("not every process has its own GPU") == bool(why)
    assert why in said
    requests: list[Any] = []
    monkeypatch.setattr(generation, "_rendezvous_store", lambda *_: store)
    monkeypatch.setattr(
        dist, "init_process_group", lambda name, **more: requests.append((name, more["rank"]))
    )
    monkeypatch.setattr(generation, "hold", lambda _: None)
    generation.join_group(process_variables)
    generation.join_group(process_variables, backend="gloo")
    assert requests == [(backend, 1), ("gloo", 1)]


def test_gpus_differ_by_machine_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert generation._own_gpu() == ""
    with_gpus(monkeypatch, nccl=False)
    assert generation._own_gpu() == ""
    with_gpus(monkeypatch)
    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=7, pci_device_id=1, uuid="GPU-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: place)
    machine = generation._machine()
    assert socket.gethostname() in machine
    assert generation._own_gpu() == f"{machine} 0:7:1"
    del place.pci_domain_id  # as in older versions of torch
    assert generation._own_gpu() == f"{machine} GPU-1"
    monkeypatch.setenv("NCCL_HOSTID", "elsewhere")  # which NCCL uses
    assert generation._own_gpu() == "elsewhere GPU-1"


@pytest.mark.parametrize(
    ("local", "number"),
    [(None, 0), ("0", 0), ("3", 3), ("4", 0), ("some", 0)],
)
def test_each_of_torchruns_processes_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, local: str | None, number: int
) -> None:
    """An executor shows a process only its own GPUs; torchrun shows all of them to all."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    with_gpus(monkeypatch)
    assert generation.own_device() == torch.device("cuda", number)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert generation.own_device() == torch.device("cpu")


def test_wires_to_servers_are_of_nccl_on_gpus_only_where_it_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Group:
        class Options:
            pass

        def __init__(self, *given: Any) -> None:
            made.append(given[1:3])

    made: list[Any] = []
    for name in pairs._NCCL_ENVIRONMENT:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    with_gpus(monkeypatch)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: ("beside", device))
    wire = pairs.create_nccl_transport(dist.HashStore(), 1)
    assert made == [(1, 2)]  # a group of two, of which this is the second
    assert wire.device == pairs.transport_device("nccl") == torch.device("cuda", 0)
    assert pairs.transport_device("gloo") == torch.device("cpu")
    # A worker's death ends no server, as torch's own thread would.
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"


def test_nccl_without_a_gpu_is_refused_before_anybody_is_waited_for(
    process_variables: generation.Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    says = "backend 'nccl' isn't available here; use gloo"
    with pytest.raises(TrainingError, match=says):
        generation.join_group(process_variables, backend="nccl")
    with pytest.raises(TrainingError, match=says):
        pairs.transport_device("nccl")
    with pytest.raises(TrainingError, match=says):
        pairs.connect_pair(dist.HashStore(), "0-0", 1, timedelta(seconds=5), "nccl")
