"""Errors of scripts are reported at once, and none ends in a wrong training."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import IterableDataset, TensorDataset

from shadowprice import training
from shadowprice.training import TrainingError, checkpoints
from shadowprice.training.allreduce.synchronisation import BufferSync
from shadowprice.training.generation import current
from tests.support.waiting import WAIT_LIMIT_SECONDS
from tests.train.generations import Job

pytestmark = pytest.mark.train

WIDE = TensorDataset(torch.randn(20, 3), torch.randn(20, 4))
DATA = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "SHADOWPRICE_PS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    training.leave_group()


def begun(**options: Any) -> tuple[Any, Any, Any]:
    run = training.join(len(DATA), **{"batch": 6, "parts": 3, "epochs": 2, **options})
    model = run.wrap(torch.nn.Linear(3, 1))
    return run, model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(run: Any, model: Any, optimizer: Any, data: Any = DATA) -> None:
    for step in run.steps(data):
        for inputs, targets in step:
            step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()


def test_a_training_alone_completes() -> None:
    run, model, optimizer = begun()
    assert not run.register(model=model, optimizer=optimizer)
    train(run, model, optimizer)
    result = checkpoints.load()
    assert result is not None
    assert (result.step, run.done) == (8, 8)
    training.leave_group()
    again, model, optimizer = begun()
    assert again.register(model=model, optimizer=optimizer)
    assert list(again.steps(DATA)) == []
    assert torch.equal(model.module.weight.cpu(), result.state["kept"]["model"]["weight"])


def test_a_mask_of_infinity_stays_what_it_is() -> None:
    class Masked(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))

        def forward(self, inputs: Any) -> Any:
            return super().forward(inputs * torch.softmax(self.mask, 0))

    run = training.join(len(DATA), batch=6, parts=3, epochs=1)
    model = run.wrap(Masked())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.register(model=model, optimizer=optimizer)
    train(run, model, optimizer)
    assert model.module.mask.tolist() == [0.0, -torch.inf, 0.0]
    assert model.module.weight.isfinite().all()


class Observer(torch.nn.Linear):
    """Keeps the minimum input, from infinity, as quantisation does, and a complex mean."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("lowest", torch.tensor(torch.inf))
        self.register_buffer("mean", torch.zeros((), dtype=torch.complex64))

    def forward(self, inputs: Any) -> Any:
        self.lowest.copy_(torch.minimum(self.lowest, inputs.min()))
        self.mean.copy_(torch.complex(inputs.mean(), inputs.mean() + 1.0))
        return super().forward(inputs)


def test_buffers_that_begin_infinite_and_complex_ones_become_the_mean_of_the_parts() -> None:
    run = training.join(len(DATA), batch=6, parts=3, epochs=1)
    model = run.wrap(Observer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.register(model=model, optimizer=optimizer)
    expected, mean = torch.inf, 0.0
    for number in range(run.total):
        parts = run.order.split_step(number)
        inputs = [DATA.tensors[0][torch.from_numpy(part.samples.copy())] for part in parts]
        columns = list(zip(parts, inputs, strict=True))
        expected = sum(part.weight * min(expected, float(x.min())) for part, x in columns)
        mean = sum(part.weight * float(x.mean()) for part, x in columns)
    train(run, model, optimizer)
    assert model.module.lowest.item() == pytest.approx(expected, rel=1e-5)
    assert model.module.mean.item() == pytest.approx(complex(mean, mean + 1.0), rel=1e-4, abs=1e-5)


def test_a_part_without_weight_changes_no_buffer() -> None:
    model = torch.nn.BatchNorm1d(2)
    buffers = BufferSync([model])
    buffers.begin()
    model.running_mean.fill_(torch.inf)
    buffers.add(0.0)
    assert [change.tolist() for change in buffers._changes] == [[0.0, 0.0], [0.0, 0.0]]


def test_no_thread_has_the_last_reference_to_a_sent_tensor() -> None:
    # In an interpreter that shuts down it would abort the process.
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    train(run, model, optimizer)
    time.sleep(0.5)
    assert run._agreement._use_count() > 1


def test_a_checkpoint_requested_within_a_step_is_of_a_whole_step() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    saved = []
    for step in run.steps(DATA):
        result = checkpoints.load()
        if result is not None and result.step == step.number:
            saved.append(result.step)
            assert torch.equal(result.state["kept"]["model"]["weight"], model.module.weight.cpu())
        if step.number == 1:
            run.save()
        for inputs, targets in step:
            step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            if step.number == 3:
                run.save()
        optimizer.step()
        optimizer.zero_grad()
        if step.number == 5:
            run.save()
    assert saved == [2, 4, 6]


@pytest.mark.extended
def test_a_timeout_during_an_evaluation_names_the_setting_to_raise(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    try:
        generation = job.start(2, "--epochs", "1", "--patience", "6", "--evaluate", "9")
        assert generation.ended() == [1, 1]
        timeout = "worker 1 timed out waiting for another worker at the end of step 4"
        assert timeout in generation.log(1)
        assert "raise the `patience` of join" in generation.log(1)
    finally:
        job.end()


def test_a_loop_left_within_a_step_cannot_be_saved(capfd: pytest.CaptureFixture[str]) -> None:
    run, model, optimizer = begun()
    with pytest.raises(
        TrainingError, match=r"save\(\) needs registered objects; call run.register"
    ):
        run.save()
    run.register(model=model, optimizer=optimizer)
    for step in run.steps(DATA):
        for inputs, targets in step:
            step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        if step.number == 1:
            run.save()
            break
    logged = capfd.readouterr().err
    assert "requested checkpoint not saved, because the loop left step 1 unfinished" in logged
    with pytest.raises(
        TrainingError, match="left step 1 unfinished, so the registered objects match no step"
    ):
        run.save()
    assert checkpoints.load() is None


def test_a_loop_left_before_a_step_can_be_saved() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    for step in run.steps(DATA):
        if step.number == 3:
            break
        for inputs, targets in step:
            step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    run.save()
    result = checkpoints.load()
    assert result is not None
    assert result.step == 3
    assert torch.equal(result.state["kept"]["model"]["weight"], model.module.weight.cpu())


def test_parts_left_out_are_found() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    steps = run.steps(DATA)
    for inputs, targets in (step := next(steps)):
        step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        break
    with pytest.raises(TrainingError, match="step 0 was left after 0 of 3 parts"):
        next(steps)


def test_a_loss_that_is_not_weighed_is_found() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    step = next(run.steps(DATA))
    parts = iter(step)
    inputs, targets = next(parts)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    with pytest.raises(TrainingError, match="part 0 of step 0 has no loss: call"):
        next(parts)


def test_a_step_gone_through_twice_and_a_loss_outside_are_found() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    step = next(run.steps(DATA))
    for inputs, targets in step:
        step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    with pytest.raises(TrainingError, match="step 0: iterated twice; iterate over each step once"):
        next(iter(step))
    with pytest.raises(TrainingError, match="step 0: got a loss outside the loop over its parts"):
        step.backward(model(inputs).mean())


def test_a_step_that_was_begun_and_left_is_not_begun_again() -> None:
    # Its first batch is gone, so all later parts would get other samples.
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    step = next(run.steps(DATA))
    next(iter(step))
    with pytest.raises(TrainingError, match="step 0: iterated twice"):
        next(iter(step))


def test_a_second_backward_pass_that_would_stay_with_one_worker_is_found() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    step = next(run.steps(DATA))

    def go_back_twice() -> None:
        for inputs, targets in step:
            scores = model(inputs)
            step.weigh(torch.nn.functional.mse_loss(scores, targets)).backward(retain_graph=True)
            step.weigh(scores.square().mean()).backward()

    with pytest.raises(TrainingError, match=r"second backward pass reached .* already averaged"):
        go_back_twice()


def test_a_loss_computed_beside_the_wrapper_is_found() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    step = next(run.steps(DATA))

    def go_beside_it() -> None:
        for inputs, targets in step:
            step.backward(torch.nn.functional.mse_loss(model.module(inputs), targets))

    with pytest.raises(
        TrainingError, match=r"without a forward pass through the model that run.wrap returned"
    ):
        go_beside_it()


def test_several_losses_added_up_and_several_forward_passes_are_as_one_loss() -> None:
    results = []
    for way in ("one", "added", "passes"):
        run, model, optimizer = begun()
        run.register(model=model, optimizer=optimizer)
        step = next(run.steps(DATA))
        for inputs, targets in step:
            near = torch.nn.functional.mse_loss(scores := model(inputs), targets)
            if way == "one":
                step.backward(near + scores.square().mean())
            elif way == "added":
                (step.weigh(near) + step.weigh(scores.square().mean())).backward()
            else:
                step.weigh(near).backward()
                step.weigh(model(inputs).square().mean()).backward()
        results.append(model.module.weight.grad.clone())
        training.leave_group()
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_batch_normalisation_of_one_sample_names_the_part_and_what_to_do() -> None:
    def trained(inner: torch.nn.Module, **options: Any) -> None:
        run, _, _ = begun(**options)
        model = run.wrap(torch.nn.Sequential(torch.nn.Linear(3, 4), inner))
        run.register(model=model)
        train(run, model, torch.optim.SGD(model.parameters(), lr=0.1), WIDE)
        training.leave_group()

    with pytest.raises(TrainingError, match=r"part 0 of step 1 has one sample.*whole=True.*parts="):
        trained(torch.nn.BatchNorm1d(4), batch=19)
    training.leave_group()
    trained(torch.nn.BatchNorm1d(4), batch=19, whole=True)


def test_objects_that_cannot_be_kept_are_found_at_once() -> None:
    run, model, _ = begun()
    with pytest.raises(TrainingError, match=r"register\(\) needs at least the model"):
        run.register()
    with pytest.raises(TrainingError, match="can't save data: TensorDataset has no state_dict"):
        run.register(model=model, data=DATA)


@pytest.mark.parametrize("value", [Path(), lambda: None], ids=["not read", "not written"])
def test_a_state_that_could_not_be_read_again_is_found_at_once(value: object) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"value": value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError(state)

    run, model, _ = begun()
    with pytest.raises(TrainingError, match="the state of odd can't be saved; use only tensors"):
        run.register(model=model, odd=Odd())


def test_a_model_with_unreadable_extra_state_is_refused_at_once() -> None:
    class Odd(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return {"where": Path()}

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError(state)

    run = training.join(len(DATA), batch=6, epochs=1)
    model = run.wrap(Odd(3, 1))
    with pytest.raises(TrainingError, match="the state of model can't be saved; use only tensors"):
        run.register(model=model)


def test_a_checkpoint_of_another_kind_of_training_is_refused() -> None:
    for state, kind in (
        ({"kind": "training with parameter servers"}, "training with parameter servers"),
        ({"kept": {}}, "other code"),
    ):
        checkpoints.save(3, state, current().job.checkpoint_dir)
        run, model, optimizer = begun()
        message = f"step 3 was saved by {kind}, this is all-reduce training; restore the script"
        with pytest.raises(TrainingError, match=message):
            run.register(model=model, optimizer=optimizer)
        training.leave_group()


AFTERWARDS = """
import os, signal, subprocess, sys
import torch
from torch.utils.data import TensorDataset
from shadowprice import training

data = TensorDataset(torch.randn(4, 3), torch.randn(4, 1))
run = training.join(len(data), batch=4, epochs=1)
model = run.wrap(torch.nn.Linear(3, 1))
run.register(model=model)
for step in run.steps(data):
    for inputs, targets in step:
        step.backward(torch.nn.functional.mse_loss(model(inputs), targets))
os.kill(os.getpid(), signal.SIGTERM)
child = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
"""


def test_after_the_last_step_sigterm_changes_no_status_and_children_can_be_ended() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AFTERWARDS],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert (ran.returncode, ran.stdout.split()) == (0, ["True"]), ran.stderr


def test_steps_before_register_and_register_twice_are_refused() -> None:
    run, model, optimizer = begun()
    with pytest.raises(TrainingError, match=r"call run.register\(model=.*\) before"):
        next(run.steps(DATA))
    run.register(model=model, optimizer=optimizer)
    with pytest.raises(TrainingError, match=r"register\(\) was called twice"):
        run.register(model=model)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(3), torch.zeros(1)


def test_data_of_another_length_or_none_are_refused() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    with pytest.raises(TrainingError, match="the data set has 5 samples, join got samples=20"):
        next(run.steps(TensorDataset(torch.zeros(5, 3))))
    with pytest.raises(TrainingError, match="the data set has no length"):
        next(run.steps(Endless()))


def test_a_checkpoint_of_another_training_is_refused() -> None:
    run, model, optimizer = begun()
    run.register(model=model, optimizer=optimizer)
    train(run, model, optimizer)
    training.leave_group()
    run, model, optimizer = begun(batch=4)
    with pytest.raises(
        TrainingError, match="batch: the checkpoint has 6, the script 4; restore batch"
    ):
        run.register(model=model, optimizer=optimizer)
    training.leave_group()
    run, model, optimizer = begun()
    with pytest.raises(TrainingError, match="holds model, optimizer, this script registers model"):
        run.register(model=model)
    training.leave_group()
    run, _, optimizer = begun()
    with pytest.raises(TrainingError, match="can't restore model from the checkpoint of step 8"):
        run.register(model=torch.nn.Linear(4, 1), optimizer=optimizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected exactly one of epochs and steps"),
        ({"epochs": 1, "steps": 1}, "expected exactly one of epochs and steps"),
        ({"epochs": 0}, "epochs: expected an integer from 1 to"),
        ({"steps": -1}, "steps: expected an integer from 1 to"),
        ({"steps": 2.5}, "steps: expected an integer, got 2.5"),
        ({"epochs": 1, "batch": "8"}, "batch: expected an integer, got '8'"),
        ({"epochs": 1, "patience": float("inf")}, "patience: expected seconds above 0"),
        ({"epochs": 1, "parts": 7}, "parts: expected at most batch = 6, got 7"),
    ],
)
def test_trainings_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        training.join(20, **{"batch": 6, **options})


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"RANK": "x"}, "RANK and WORLD_SIZE must be integers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK: expected 0 to WORLD_SIZE - 1 = 1, got 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT are not set"),
    ],
)
def test_processes_report_invalid_variables(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, str], message: str
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in expected.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match=message):
        current()


def test_missing_workers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match="process 1 of 2 failed to join the others at 127"):
        training.join(20, batch=6, epochs=1, patience=1)


def test_a_job_with_parameter_servers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWPRICE_PS", "2")
    with pytest.raises(TrainingError, match="no parameter servers, but the job has 2; remove `ps`"):
        training.join(20, batch=6, epochs=1)


def test_without_torch_it_says_what_brings_it() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from shadowprice import training\n"
        "print(training.Order(40, 8).steps)\n"
        "training.join"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout == "5\n"
    assert "needs torch: pip install './packages/training[torch]'" in done.stderr.splitlines()[-1]
