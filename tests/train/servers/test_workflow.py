"""Results with servers, against plain loops; every sample once an epoch, whichever process dies."""

from __future__ import annotations

import http.server
import json
import os
import random
import signal
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from shadowprice.training import TrainingError, checkpoints
from shadowprice.training.generation import own_device
from shadowprice.training.servers import chunks, running
from shadowprice.training.servers import server as server_module
from shadowprice.training.servers.messages import LocalLink, Message, MessageKind, PeerLostError
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.running import run, serve_once_connected
from shadowprice.training.servers.server import Leader, ParameterServer
from shadowprice.training.servers.shard import Shard, build_seeded_model, trainable_parameters
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until
from tests.train.servers import scripts
from tests.train.servers.threads import Threads

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def checkpoints_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))


def minibatches_in_step(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Yield the input of each step, computed from the whole data set at once."""
    parts = [recipe.data.fetch(number) for number in range(len(recipe.data.chunks))]
    order = recipe.order()
    for epoch in range(recipe.epochs):
        rows = {
            name: np.concatenate(
                [parts[chunk][name][order.within(epoch, chunk)] for chunk in order.chunks(epoch)]
            )
            for name in parts[0]
        }
        for first in range(0, recipe.data.samples, recipe.minibatch):
            taken = {name: row[first : first + recipe.minibatch] for name, row in rows.items()}
            yield {name: torch.from_numpy(one).to(own_device()) for name, one in taken.items()}


def minibatches_by_chunk(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Yield the input of a single worker."""
    order = recipe.order()
    for epoch in range(recipe.epochs):
        for chunk in order.chunks(epoch):
            arrays = recipe.data.fetch(chunk)
            for index in range(order.minibatches(recipe.minibatch)[chunk]):
                places = order.minibatch(epoch, chunk, index, recipe.minibatch)
                batch = {name: torch.from_numpy(array[places]) for name, array in arrays.items()}
                yield {name: one.to(own_device()) for name, one in batch.items()}


def plain(recipe: Recipe, minibatches: Iterator[dict[str, Any]]) -> tuple[Any, list[float]]:
    """Train as a script that knows nothing of servers."""
    model = build_seeded_model(recipe).to(own_device())
    optimizer = recipe.optimizer(trainable_parameters(model))
    rate = optimizer.param_groups[0]["lr"]
    losses = []
    for number, batch in enumerate(minibatches):
        optimizer.param_groups[0]["lr"] = rate * recipe.schedule(number)
        optimizer.zero_grad()
        loss = recipe.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.cat([one.detach().reshape(-1) for _, one in trainable_parameters(model)]), losses


def learnt(threads: Threads, worker: int = 0) -> Any:
    return threads.workers[worker]._values


def test_one_worker_and_one_server_are_a_plain_loop(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), adam=True)
    losses: list[float] = []
    outcome = run(recipe, Settings(observe=lambda _, loss: losses.append(loss)))
    assert outcome is not None
    wanted, curve = plain(recipe, minibatches_by_chunk(recipe))
    result = torch.cat([one.detach().reshape(-1) for _, one in trainable_parameters(outcome.model)])
    assert torch.allclose(result, wanted, rtol=1e-12)
    assert np.allclose(losses, curve, rtol=1e-12)
    assert outcome.minibatches == len(curve)
    assert outcome.measured["gradient_bytes"] == 8 * len(wanted)
    assert outcome.measured["minibatch_time"] > 0


def test_training_works_with_a_storage_that_reports_no_locations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("requests")
    monkeypatch.setattr(chunks, "_BACKOFF_SECONDS", (0.0,))
    recipe = scripts.counted(scripts.written(tmp_path), 2)
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # closed again: no process listens there
        port = nobody.getsockname()[1]
    recipe = replace(recipe, data=replace(recipe.data, namenode=f"webhdfs://127.0.0.1:{port}"))
    threads = Threads(recipe, Settings(), 2, 1)
    said = ""
    until = time.monotonic() + WAIT_LIMIT_SECONDS
    while "failed to read the locations of chunks" not in said:
        assert time.monotonic() < until, said
        time.sleep(0.01)
        said += capsys.readouterr().err
    assert "the location of chunk-00000" in said
    assert threads.run() == "done"
    assert learnt(threads).tolist() == [2.0] * scripts.SAMPLES
    assert "local_share" not in threads.leader.measured.metrics()


class NameNode(http.server.BaseHTTPRequestHandler):
    """Reports, as HDFS 2.7.3 does, that every third chunk is on node-0, others on node-1."""

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        assert urllib.parse.parse_qs(url.query) == {"op": ["GET_BLOCK_LOCATIONS"]}
        number = int(url.path.removesuffix(".npz").rpartition("-")[2])
        host, address = ("node-1", "10.0.0.1") if number % 3 else ("node-0", "10.0.0.0")
        node = {"hostName": host, "ipAddr": address, "networkLocation": "/default-rack"}
        blocks = [{"isCorrupt": False, "locations": [node], "startOffset": 0}]
        content = json.dumps({"LocatedBlocks": {"locatedBlocks": blocks}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def test_a_worker_reads_the_chunks_of_its_host_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("requests")
    monkeypatch.setenv("SHADOWPRICE_HOST", "node-0")
    recipe = scripts.counted(scripts.written(tmp_path), 2)
    count = len(recipe.data.chunks)
    read: list[int] = []
    fetch = chunks.DataSet.fetch

    def noted(self: chunks.DataSet, number: int) -> chunks.Arrays:
        read.append(number)
        return fetch(self, number)

    monkeypatch.setattr(chunks.DataSet, "fetch", noted)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NameNode) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        namenode = f"webhdfs://127.0.0.1:{server.server_port}"
        recipe = replace(recipe, data=replace(recipe.data, namenode=namenode))
        threads = Threads(recipe, Settings(keep=1), 1, 1)
        until = time.monotonic() + WAIT_LIMIT_SECONDS
        while not all(map(threads.leader._localities.is_known, range(count))):
            assert time.monotonic() < until
            time.sleep(0.01)
        server.shutdown()
    assert threads.run() == "done"
    wanted = []
    for epoch in range(2):
        order = recipe.order().chunks(epoch)
        wanted += [one for one in order if one % 3 == 0] + [one for one in order if one % 3]
        assert wanted[-count:] != list(order)
    assert read == wanted
    assert learnt(threads).tolist() == [2.0] * scripts.SAMPLES
    metrics = threads.leader.measured.metrics()
    names = ("local_chunks", "rack_chunks", "remote_chunks", "local_share")
    assert [metrics[name] for name in names] == [6.0, 0.0, 12.0, 6 / 18]


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 2), (5, 3)])
def test_in_step_the_number_of_workers_and_servers_makes_no_difference(
    tmp_path: Path, workers: int, servers: int
) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), adam=True)
    losses: list[float] = []
    settings = Settings(
        synchronous=True, parts=5, observe=lambda _, loss: losses.append(loss), save_every=1e6
    )
    threads = Threads(recipe, settings, workers, servers)
    assert threads.run() == "done"
    wanted, curve = plain(recipe, minibatches_in_step(recipe))
    assert np.allclose(losses, curve, rtol=1e-9)
    assert torch.allclose(learnt(threads), wanted, rtol=1e-9)


def test_in_step_a_curve_survives_deaths_stops_and_other_numbers(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=3)
    losses: dict[int, float] = {}
    plans = [(2, 1, 9), (4, 3, 20), (1, 2, 31), (3, 2, None)]
    for number, (workers, servers, until) in enumerate(plans):
        stop: list[int] = []

        def observe(step: int, loss: float, until: int | None = until, stop: Any = stop) -> None:
            losses[step] = loss
            if until is not None and step >= until:
                stop.append(1)

        settings = Settings(synchronous=True, parts=4, observe=observe)
        dies = {0: 7 + number} if workers > 1 else {}
        threads = Threads(recipe, settings, workers, servers, dies, stop)
        assert threads.run() == ("stop" if until is not None else "done")
    wanted, curve = plain(recipe, minibatches_in_step(recipe))
    assert np.allclose([losses[step] for step in range(len(curve))], curve, rtol=1e-9)
    assert torch.allclose(learnt(threads, 2), wanted, rtol=1e-9)


@pytest.mark.parametrize(
    "dies", [{}, {0: 0}, {0: 2, 1: 3, 2: 9}, {1: 40, 2: 41}, {0: 13, 1: 14, 2: 17}]
)
def test_every_sample_counts_once_an_epoch_though_workers_die(
    tmp_path: Path, dies: dict[int, int]
) -> None:
    recipe = scripts.counted(scripts.written(tmp_path), epochs=2)
    threads = Threads(recipe, Settings(), 4, 3, dies)
    assert threads.run() == "done"
    assert learnt(threads, 3).tolist() == [2.0] * scripts.SAMPLES
    assert threads.leader.version == sum(recipe.order().minibatches(recipe.minibatch)) * 2


def test_bounded_staleness_keeps_the_fastest_near_the_slowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=2)
    apart: list[int] = []

    def run_with(staleness: int | None) -> int:
        monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / f"of-{staleness}"))
        settings = Settings(staleness=staleness, save_every=1e6)
        threads = Threads(recipe, settings, 3, 1)
        leader = threads.leader
        slow, compute = threads.workers[0], threads.workers[0]._compute_gradient

        def slowly(*given: Any) -> Any:
            time.sleep(0.08)  # so long that the others get far ahead even on a busy machine
            return compute(*given)

        slow._compute_gradient = slowly  # type: ignore[method-assign]
        count = leader._apply_everywhere
        most = [0]

        def watched(keys: Any) -> None:
            holders = leader._assigner.holders()
            clocks = [leader._progress_clocks.get(holder, 0) for holder in holders]
            most[0] = max(most[0], max(clocks, default=0) - min(clocks, default=0))
            count(keys)

        leader._apply_everywhere = watched  # type: ignore[method-assign]
        assert threads.run() == "done"
        apart.append(most[0])
        return threads.leader.measured.max_staleness

    bound = run_with(1)
    free = run_with(None)
    assert apart[0] <= 1 + 1  # one more while the fastest commits what it may
    assert apart[1] > apart[0]
    assert bound <= (2 * 1 + 1) * 2 < free


def test_a_silent_worker_loses_its_chunk_and_comes_back(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=1)
    threads = Threads(recipe, Settings(patience=0.3), 2, 2)
    slept, compute = [0.9], threads.workers[0]._compute_gradient

    def asleep(*given: Any) -> Any:
        if slept:
            time.sleep(slept.pop())
        return compute(*given)

    threads.workers[0]._compute_gradient = asleep  # type: ignore[method-assign]
    # The other one has a long last chunk, so that the sleeping one wakes before the end.
    other = threads.workers[1]._compute_gradient

    def steadily(*given: Any) -> Any:
        time.sleep(0.06)
        return other(*given)

    threads.workers[1]._compute_gradient = steadily  # type: ignore[method-assign]
    assert threads.run() == "done"
    assert threads.leader.version == sum(recipe.order().minibatches(recipe.minibatch))


def test_a_checkpoint_that_cannot_be_written_ends_nothing_but_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), epochs=1, pace=0.1)
    stop: list[int] = []
    settings = Settings(observe=lambda *_: stop.append(1))
    healthy = Threads(recipe, Settings(save_every=0.1), 2, 2)
    stopped = Threads(recipe, settings, 1, 1, stop=stop)
    monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / "file" / "checkpoints"))
    assert healthy.run() == "done"
    said = capfd.readouterr().err
    assert (
        "failed to save a checkpoint after mini-batch 6; the previous one remains: [Errno 20]"
        in said
    )
    assert said.count("failed to save a checkpoint after mini-batch") > 1
    with pytest.raises(TrainingError, match=r"stopping, but mini-batch \d couldn't be saved"):
        stopped.run()


def test_a_stop_that_cannot_be_saved_fails_a_process_with_both_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), epochs=1, pace=0.1)

    def stop(*_: Any) -> None:
        monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / "file" / "checkpoints"))
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(TrainingError, match=r"stopping, but mini-batch \d couldn't be saved"):
            run(recipe, Settings(observe=stop))
    finally:
        signal.signal(signal.SIGTERM, before)


class Constant(torch.nn.Module):
    """Keeps values that no mini-batch changes, and that float64 can't hold, or only with care."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(scripts.FEATURES, scripts.CLASSES)
        kept = {
            "mask": torch.full((2,), -torch.inf),
            "turn": torch.polar(torch.ones(3), torch.arange(3.0)),
            "large": torch.tensor([2**61 + 1]),
        }
        for name, value in kept.items():
            self.register_buffer(name, value)

    def forward(self, points: Any) -> Any:
        """Return scores."""
        return self.last(points)


@pytest.mark.parametrize("synchronous", [True, False])
def test_buffers_that_nothing_changes_stay_what_they_are(
    tmp_path: Path, *, synchronous: bool
) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), double=False, epochs=1)
    outcome = run(replace(recipe, model=Constant), Settings(synchronous=synchronous))
    assert outcome is not None
    for name, value in Constant().named_buffers():
        assert torch.equal(outcome.model.get_buffer(name).cpu(), value), name


class Observer(Constant):
    """Keeps the minimum input, from infinity, as observers of quantisation do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.tensor(torch.inf))

    def forward(self, points: Any) -> Any:
        """Return scores."""
        self.lowest.copy_(torch.minimum(self.lowest, points.min()))
        return super().forward(points)


def test_a_buffer_that_begins_infinite_takes_the_values_of_the_minibatches(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), double=False, epochs=1)
    recipe = replace(recipe, model=Observer)
    outcome = run(recipe)
    assert outcome is not None
    lowest = min(float(recipe.data.fetch(number)["x"].min()) for number in range(2))
    assert outcome.model.lowest.item() == pytest.approx(lowest, rel=1e-5)
    assert outcome.model.mask.tolist() == [-torch.inf, -torch.inf]
    means = []
    for workers in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / f"of-{workers}"))
            threads = Threads(recipe, Settings(synchronous=True, parts=4), workers, 1)
            assert threads.run() == "done"
        means.append(threads.leader.shard.buffers[-1].item())
    assert means[0] == pytest.approx(means[1])
    assert lowest < means[0] < 0.0


def test_a_late_value_of_a_buffer_that_began_infinite_is_not_added(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), double=False, epochs=1)
    shard = Shard(replace(recipe, model=Observer), 0, 1)
    size = len(shard.buffers)
    replaced = (~shard.buffers.isfinite()).double()
    for value in (3.0, 2.0):  # both workers began with infinity
        change = torch.zeros(size, dtype=torch.float64)
        change[-1] = value
        shard.apply_buffer_changes([torch.cat([change, replaced])])
        assert shard.buffers[-1].item() == value
    shard.apply_buffer_changes([change])
    assert shard.buffers[-1].item() == 4.0


def test_in_step_random_draws_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), epochs=1)

    def noisy(model: Any, batch: Any) -> Any:
        shape = tuple(batch["x"].shape)
        noise = np.random.normal(size=shape) + random.random()  # noqa: NPY002  # as scripts do
        return recipe.loss(
            model, {**batch, "x": batch["x"] + torch.from_numpy(noise).to(own_device())}
        )

    turn = threading.Lock()

    def in_turn(compute: Any, *given: Any) -> Any:
        with turn:
            return compute(*given)

    curves = []
    for workers in (1, 3):
        losses: list[float] = []
        settings = Settings(
            synchronous=True, parts=4, observe=lambda _, loss, kept=losses: kept.append(loss)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / f"of-{workers}"))
            threads = Threads(replace(recipe, loss=noisy), settings, workers, 1)
            for worker in threads.workers:  # they share numpy's generator: one at a time
                worker._compute_gradient = partial(in_turn, worker._compute_gradient)  # type: ignore[method-assign]
            assert threads.run() == "done"
        curves.append(losses)
    assert np.allclose(curves[0], curves[1], rtol=1e-9)


def test_the_first_worker_that_is_left_shows_the_result(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=1)
    whole = Threads(recipe, Settings(), 3, 1)
    left = Threads(recipe, Settings(), 3, 1, dies={0: 3})
    for threads, first in ((left, 1), (whole, 0)):
        assert threads.run() == "done"
        assert [worker.leads for worker in threads.workers] == [n == first for n in range(3)]


class TooOftenError(Exception):
    """A mini-batch is computed again and again."""


def slow(recipe: Recipe, seconds: float, most: int) -> tuple[Recipe, list[int]]:
    """Return a recipe with slow mini-batches, or parts, and a list with an entry for each."""
    computed: list[int] = []

    def loss(model: Any, batch: Any) -> Any:
        computed.append(1)
        if len(computed) > most:
            raise TooOftenError
        time.sleep(seconds)
        return recipe.loss(model, batch)

    return replace(recipe, loss=loss), computed


def test_a_worker_alone_may_be_slower_than_the_patience(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path, 20, 20), epochs=1)
    recipe, computed = slow(recipe, 0.5, 10)
    outcome = run(recipe, Settings(patience=0.1))
    assert outcome is not None
    assert outcome.minibatches == len(computed)


@pytest.mark.parametrize("synchronous", [True, False])
def test_workers_all_slower_than_the_patience_get_to_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], *, synchronous: bool
) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), epochs=1)
    # In step each has one part; the second begins late, so that the first waits for it.
    settings = Settings(patience=0.1, synchronous=synchronous, parts=2)
    recipe, computed = slow(recipe, 0.5, 20)
    threads = Threads(recipe, settings, 2, 1)
    late, compute = [1.0], threads.workers[1]._compute_gradient

    def lately(*given: Any) -> Any:
        time.sleep(late.pop() if late else 0.0)
        return compute(*given)

    threads.workers[1]._compute_gradient = lately  # type: ignore[method-assign]
    assert threads.run() == "done"
    steps = recipe.steps(2).steps if synchronous else 6
    assert threads.leader.version == steps
    assert len(computed) <= 2 * 6 + 4
    assert "for a mini-batch that was reassigned" in capfd.readouterr().err


def test_a_checkpoint_of_another_recipe_or_mode_is_refused(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=1)
    assert run(recipe) is not None
    with pytest.raises(TrainingError, match="made with another minibatch"):
        run(replace(recipe, minibatch=9))
    with pytest.raises(TrainingError, match="synchronous=False; restore that setting"):
        run(recipe, Settings(synchronous=True))
    again = run(recipe)  # it is done: nothing is computed again
    assert again is not None
    assert again.minibatches == sum(recipe.order().minibatches(recipe.minibatch))


def test_a_checkpoint_of_another_kind_of_training_is_refused(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=1)
    checkpoints.save(3, {"kind": "all-reduce training"}, tmp_path / "checkpoints")
    message = "saved by all-reduce training, this is training with parameter servers"
    with pytest.raises(TrainingError, match=message):
        run(recipe)


def test_several_workers_without_a_server_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=1)
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():  # as torchrun does
        monkeypatch.setenv(name, value)
    with pytest.raises(
        TrainingError, match="2 workers, but no parameter server; add `ps` to the job"
    ):
        run(recipe)


def test_errors_of_the_script_are_raised_there(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), epochs=1)

    before = threading.active_count()

    def broken(model: Any, batch: Any) -> Any:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        run(replace(recipe, loss=broken))
    wait_until(lambda: threading.active_count() <= before)  # no thread is left that could save

    def careless(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.step = lambda: 1 / 0  # type: ignore[assignment,method-assign]
        return optimizer

    with pytest.raises(ZeroDivisionError):
        run(replace(recipe, optimizer=careless))


@pytest.mark.parametrize(("code", "status"), [(None, 0), (3, 3), ("no such data", 1)])
def test_a_process_with_a_hanging_thread_ends_with_the_status_of_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: object, status: int
) -> None:
    released = threading.Event()

    def leave(_recipe: Any, _settings: Any, threads: list[threading.Thread]) -> None:
        threads.append(threading.Thread(target=released.wait, args=(WAIT_LIMIT_SECONDS,)))
        threads[0].start()
        raise SystemExit(code)

    statuses: list[int] = []
    monkeypatch.setattr(running, "_run_role", leave)
    monkeypatch.setattr(running, "_THREAD_EXIT_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(running, "_exit", statuses.append)
    with pytest.raises(SystemExit):
        run(scripts.recipe(scripts.written(tmp_path)))
    released.set()
    assert statuses == [status]


@pytest.mark.parametrize("error", [TrainingError("no such backend"), SystemExit(3)])
def test_an_error_while_a_worker_connects_ends_the_server(
    tmp_path: Path, error: BaseException
) -> None:
    def connect(worker: int) -> LocalLink:
        raise PeerLostError("it is late") if worker else error

    leader = Leader(scripts.recipe(scripts.written(tmp_path)), Settings(), 1, 2)
    serve_once_connected(leader, 1, connect)
    assert leader.failure is None
    serve_once_connected(leader, 0, connect)
    with pytest.raises(type(error)) as caught:
        leader.lead([])
    assert caught.value is error


def test_workers_that_never_came_and_workers_that_died_end_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LEAVE_TIMEOUT_SECONDS", 0.1)
    ours, theirs = LocalLink.pair()

    def connect(worker: int) -> LocalLink:
        if worker:
            raise PeerLostError("it is late")
        return theirs

    leader = Leader(scripts.recipe(scripts.written(tmp_path)), Settings(), 1, 2)
    ours.close()  # worker 0 dies
    for worker in range(2):
        serve_once_connected(leader, worker, connect)
    with pytest.raises(PeerLostError, match="all workers are gone"):
        leader.lead([])


def test_a_schedule_that_exits_ends_its_server(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path))
    leaving = SystemExit("the script exits in its learning rate")

    def leave(_minibatch: int) -> float:
        raise leaving

    server = ParameterServer(Shard(replace(recipe, schedule=leave), 1, 2), 0, keeps=False)
    ours, theirs = LocalLink.pair()
    thread = threading.Thread(target=server.follow, args=(theirs,))
    thread.start()
    server.respond(
        0, Message(MessageKind.PUSH, 1, 0, payload=torch.zeros_like(server.shard.values))
    )
    ours.send(Message(MessageKind.APPLY, payload=torch.tensor([1, 0])))
    thread.join(WAIT_LIMIT_SECONDS)
    assert server.failure is leaving


def test_a_pace_is_kept_and_changes_nothing_that_is_learnt(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path, 40, 20), epochs=2)
    results = []
    for number, pace in enumerate((0.0, 0.15)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / f"paced-{number}"))
            began = time.monotonic()
            outcome = run(recipe, Settings(pace=pace))
            took = time.monotonic() - began
        assert outcome is not None
        assert outcome.minibatches == 12
        assert took >= 12 * pace
        results.append([parameter.detach() for parameter in outcome.model.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(TrainingError, match="pace"):
        Settings(pace=-1.0)
