"""Links between processes, by socket and by shared memory; a dead peer is noticed."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from shadowprice.training import TrainingError
from shadowprice.training.servers import pairs
from shadowprice.training.servers.measuring import TrafficMeter
from shadowprice.training.servers.messages import Message, MessageKind, PeerLostError
from shadowprice.training.servers.pairs import (
    PairLink,
    SharedMemoryBuffer,
    accept_shared_memory,
    connect_pair,
    offer_shared_memory,
)
from tests.train.backends import BACKENDS, ON_GPUS, share_gpus
from tests.train.forking import CONTEXT
from tests.train.servers import generations, scripts

pytestmark = pytest.mark.train

CAPACITY = 64 << 10


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    share_gpus(1)
    made = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return made, made.port


def begun(store: tuple[Any, int], capacity: int, backend: str) -> tuple[PairLink, Any]:
    given = (store[1], backend)
    process = CONTEXT.Process(target=scripts.peer, args=given, daemon=True)
    process.start()
    link = connect_pair(store[0], "link", 1, timedelta(seconds=120), backend)
    assert offer_shared_memory(link, capacity) is (bool(capacity) and backend == "gloo")
    link.traffic = TrafficMeter()
    return link, process


@pytest.mark.parametrize(
    ("capacity", "backend"),
    [(0, "gloo"), (CAPACITY, "gloo"), (CAPACITY, "wired"), pytest.param(0, "nccl", marks=ON_GPUS)],
)
def test_tensors_arrive_unchanged_and_a_death_is_noticed(
    store: tuple[Any, int], capacity: int, backend: str
) -> None:
    link, process = begun(store, capacity, backend)
    payloads = [
        None,
        torch.empty(0),
        torch.arange(3, dtype=torch.int64),
        torch.randn(5000, dtype=torch.float64),
        torch.randn(CAPACITY // 4),  # as much as the shared memory takes
        torch.randn(CAPACITY // 4 + 1),  # one more: by socket
        torch.randn(2000).bfloat16(),
        torch.arange(8000, dtype=torch.uint8),
    ]
    payloads = [None if payload is None else payload.to(link.device) for payload in payloads]
    for number, payload in enumerate(payloads):
        said = Message(MessageKind.PUSH, 2**50 + number, number, 7, (0.1, float(number)), payload)
        link.send(said)
        into = torch.empty_like(payload) if payload is not None and number % 2 else None
        result = link.receive(into)
        assert (result.kind, result.token, result.index) == (said.kind, said.token, said.index)
        assert (result.version, result.numbers) == (said.version, said.numbers)
        if payload is None or not payload.numel():
            assert result.payload is None
        else:
            assert result.payload.dtype == payload.dtype
            assert torch.equal(result.payload, payload)
    assert link.traffic.bytes == 2 * sum(
        payload.nbytes for payload in payloads if payload is not None and payload.numel()
    )
    # It is killed while we wait: only its end shows that.
    threading.Timer(0.3, process.kill).start()
    with pytest.raises(PeerLostError):
        link.receive()
    process.join(generations.PATIENCE)
    assert process.exitcode is not None


@pytest.mark.parametrize(("capacity", "backend"), [(0, "gloo"), (CAPACITY, "gloo"), (0, "wired")])
def test_a_received_value_stays_until_the_next_of_its_kind(
    store: tuple[Any, int], capacity: int, backend: str
) -> None:
    # As a gradient that waits for its commit, which may bring as many bytes.
    ends: dict[int, PairLink] = {}

    def meet(rank: int) -> None:
        ends[rank] = connect_pair(store[0].clone(), "both", rank, timedelta(seconds=60), backend)
        if rank:
            offer_shared_memory(ends[rank], capacity)
        else:
            accept_shared_memory(ends[rank])

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(generations.PATIENCE)
        assert not thread.is_alive(), "an end of a link never met the other"
    worker, server = ends[0], ends[1]
    assert (server.memory is not None) is bool(capacity)
    gradient, change = torch.full((2000,), 1.0), torch.full((2000,), 2.0)
    found: dict[str, list[Any]] = {"server": [], "worker": []}

    def take(end: PairLink, name: str) -> None:
        time.sleep(0.2)  # both are under way before the first is read
        found[name] = [end.receive().payload for _ in range(2)]

    for one, other, name, kinds in (
        (worker, server, "server", (MessageKind.PUSH, MessageKind.COMMIT)),
        (server, worker, "worker", (MessageKind.VALUES, MessageKind.BUFFERS)),
    ):
        taking = threading.Thread(target=take, args=(other, name))
        taking.start()
        for kind, payload in zip(kinds, (gradient, change), strict=True):
            one.send(Message(kind, payload=payload))
        taking.join(generations.PATIENCE)
        assert not taking.is_alive(), (name, found)
        assert torch.equal(found[name][0], gradient)
        assert torch.equal(found[name][1], change)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("dies", ["who sends", "who receives"])
def test_a_death_during_a_transfer_is_noticed(
    store: tuple[Any, int], backend: str, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NCCL was asked to move would wait for good: gloo says, or a limit, that it is lost."""
    monkeypatch.setattr(pairs, "_TRANSFER_TIMEOUT_SECONDS", 2.0)
    link, process = begun(store, 0, backend)
    payload = torch.zeros(1 << 20, device=link.device)
    if dies == "who receives":
        os.kill(process.pid, signal.SIGSTOP)  # it receives nothing, and dies before it could
        threading.Timer(0.5, process.kill).start()
        with pytest.raises(PeerLostError):
            link.send(Message(MessageKind.PUSH, payload=payload))
    else:
        # It announces a tensor, and sends nothing.
        link.send(Message(MessageKind.NEXT, numbers=(scripts.SAY_ONLY,)))
        threading.Timer(0.5, process.kill).start()
        with pytest.raises(PeerLostError):
            link.receive()
    process.join(generations.PATIENCE)


def test_memory_is_shared_only_with_whom_it_was_made_for() -> None:
    made = SharedMemoryBuffer.make(5000)
    assert made is not None
    memory, description = made
    other = SharedMemoryBuffer.open(description)
    assert other is not None
    memory.outgoing[:3] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    other.outgoing[:1] = torch.tensor([9], dtype=torch.uint8)
    assert other.incoming[:3].tolist() == [1, 2, 3]
    assert memory.incoming[:1].tolist() == [9]
    path, size, mark = description.split(":")
    # On another machine the name means nothing, something else, or other memory.
    for wrong in (
        f"/proc/1000000000/fd/3:{size}:{mark}",
        f"{path}:{int(size) + 1}:{mark}",
        f"{path}:{size}:{'00' * 32}",
        f"/dev/null:{size}:{mark}",
        f"{__file__}:{os.path.getsize(__file__)}:{mark}",  # noqa: PTH202
        "nonsense",
        "",
    ):
        assert SharedMemoryBuffer.open(wrong) is None


def test_an_absent_process_is_not_awaited_forever(store: tuple[Any, int]) -> None:
    with pytest.raises(PeerLostError, match="the other process did not connect"):
        connect_pair(store[0], "nobody", 0, timedelta(seconds=1))
    with pytest.raises(TrainingError, match="backend 'pigeons' isn't available here"):
        connect_pair(store[0], "nobody", 0, timedelta(seconds=1), "pigeons")
