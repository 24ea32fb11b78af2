"""Data-parallel training that resumes from the job's checkpoint, and saves on SIGTERM.

.. code-block:: python

    run = training.join(len(data), batch=96, epochs=20)
    model = run.wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.register(model=model, optimizer=optimizer)
    for step in run.steps(data):
        for images, labels in step:
            step.backward(criterion(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shadowprice import jobs
from shadowprice.training.allreduce.loading import iter_parts
from shadowprice.training.allreduce.step import Step
from shadowprice.training.allreduce.synchronisation import BufferSync, GradientSync
from shadowprice.training.checkpoints import Restored, load_and_broadcast, serialize
from shadowprice.training.checkpoints import save as save_checkpoint
from shadowprice.training.errors import TrainingError, checked_integer, checked_seconds, first_line
from shadowprice.training.generation import (
    JOIN_TIMEOUT,
    Generation,
    current,
    hold,
    join_group,
    leave_group,
    say,
    wait_for,
    workers_text,
)
from shadowprice.training.randomness import seed_all
from shadowprice.training.reporting import ProgressReporter
from shadowprice.training.sampling import MAX_NUMBER, Order

SAVE_EVERY: Final = 600.0
"""Seconds between two checkpoints, in addition to those on SIGTERM."""

REPORT_EVERY: Final = 2.0
"""Seconds between two reports."""

_KIND: Final = "all-reduce training"


class Run:
    """Training of a job within this generation; `join` creates it.

    Attributes
    ----------
    generation : Generation
        Identity of this process among the processes of its generation.
    order : Order
        Samples of each step.
    total : int
        Steps of the training, over all generations.
    done : int
        Steps done since the start of the job.
    loss : float or None
        Loss of the latest step over all its samples; on GPUs, the latest reported loss.
    """

    def __init__(
        self,
        generation: Generation,
        order: Order,
        total: int,
        *,
        save_every: float = SAVE_EVERY,
        report_every: float = REPORT_EVERY,
        group: Any = None,
    ) -> None:
        self.generation, self.order, self.total = generation, order, total
        self.done = 0
        self.loss: float | None = None
        self._reads_next_loss = True  # from the GPU, because the next step may be reported
        self._group = group
        # Numbers that are summed over the workers: SIGTERM received, loss, report due.
        self._agreement = torch.zeros(3, dtype=torch.float64)
        hold(self._agreement)
        self._save_every = save_every
        self._reporter = ProgressReporter(report_every)
        self._reductions: list[GradientSync] = []
        self._registered: dict[str, Any] | None = None
        self._gradients: dict[str, dict[str, Any]] = {}
        self._logged: dict[str, float] = {}
        self._stop: jobs.StopSignal | None = None
        self._step: Step | None = None  # the current step
        self._unfinished_step: Step | None = None  # its loop over batches was left early
        self._save_requested = False
        self._saved_at, self._saved_step = time.monotonic(), -1

    @property
    def leads(self) -> bool:
        """Whether this process reports and saves."""
        return self.generation.rank == 0

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self.generation.device

    # ---------------------------------------------------------------- setup

    def wrap(self, model: Any, **options: Any) -> Any:
        """Return a model whose gradients are averaged over the workers.

        The model is moved to this process's device. ``options`` go to `DistributedDataParallel`:
        ``find_unused_parameters``, ``bucket_cap_mb``.
        """
        model = model.to(self.device)
        devices = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=devices, **options)
        # `BufferSync` synchronises buffers. The constructor's argument differs between versions.
        wrapped.broadcast_buffers = False
        self._reductions.append(GradientSync(wrapped))
        return wrapped

    def register(self, **objects: Any) -> bool:
        """Restore objects from the newest valid checkpoint, and save them in later checkpoints.

        ``objects`` have ``state_dict`` and ``load_state_dict``: models, optimizers, learning rate
        schedules, gradient scalers. Returns whether a checkpoint was restored. Raises
        `TrainingError` if the checkpoint has another order of the data or other objects, or if the
        state of an object can't be saved.
        """
        if self._registered is not None:
            raise TrainingError("register() was called twice; pass all objects in one call")
        if not objects:
            raise TrainingError("register() needs at least the model and its optimizer")
        self._registered = {name: _unwrapped(value) for name, value in objects.items()}
        _check_states(self._registered)
        restored = load_and_broadcast(self._group)
        if restored is not None:
            self._restore(restored)
        # Before, SIGTERM may end the process, because there is nothing to save.
        self._stop = jobs.StopSignal()
        self._run_collective(lambda: dist.barrier(group=self._group), "the beginning")
        if self.leads:
            jobs.record_restored(self.done)
            say(f"step {self.done} of {self.total}, {workers_text()}")
        self._saved_at, self._saved_step = time.monotonic(), self.done
        return restored is not None

    def _restore(self, checkpoint: Restored) -> None:
        assert self._registered is not None
        checkpoint.check_kind(_KIND)
        self.order.check(checkpoint.state["order"])
        states = checkpoint.state["kept"]
        if states.keys() != self._registered.keys():
            raise TrainingError(
                f"the checkpoint of step {checkpoint.step} holds {', '.join(sorted(states))}, this "
                f"script registers {', '.join(sorted(self._registered))}; "
                "register the same objects, or submit a new job"
            )
        for name, target in self._registered.items():
            try:
                target.load_state_dict(states[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise TrainingError(
                    f"can't restore {name} from the checkpoint of step {checkpoint.step}: {error}"
                ) from error
        # Applied when the first step starts, because scripts clear gradients before it.
        self._gradients = checkpoint.state.get("gradients", {})
        self.done, self.loss = checkpoint.step, checkpoint.state["loss"]

    def log(self, **metrics: float) -> None:
        """Add metrics, such as an accuracy or a learning rate, to all later reports."""
        self._logged |= {name: float(value) for name, value in metrics.items()}

    # ---------------------------------------------------------------- steps

    def steps(
        self, data: Any, *, collate: Callable[[Any], Any] | None = None, **options: Any
    ) -> Iterator[Step]:
        """Yield the remaining steps.

        After each step, all workers agree on whether SIGTERM came. If it did, they save and exit.
        The code after the loop runs once all steps are done and saved, but a failure of this last
        save is only logged. ``data`` is a map-style data set: ``__len__`` and
        ``__getitem__``. ``collate`` combines samples into a batch; by default torch's. ``options``
        go to `DataLoader`: ``num_workers``, ``prefetch_factor``, ``pin_memory``.
        """
        if self._registered is None:
            raise TrainingError("call run.register(model=..., optimizer=...) before the first step")
        rank, world = self.generation.rank, self.generation.world
        remaining = range(self.done, self.total)
        loaded = iter_parts(data, self.order, remaining, rank, world, collate=collate, **options)
        buffers = BufferSync([reduction.wrapped.module for reduction in self._reductions])
        _set_gradients(self._registered, self._gradients)
        self._gradients = {}
        for number in remaining:
            share = self.order.worker_parts(number, rank, world)
            step = Step(
                number, self.order, share, loaded, self._reductions, buffers,
                workers=world, device=self.device,
            )  # fmt: skip
            self._step = step
            try:
                yield step
            except GeneratorExit:
                self._on_early_exit(step)
                raise
            step.check_complete()
            end = f"the end of step {number}"
            self._run_collective(buffers.end, end)
            seed_all(self.order.part_seed(number, 0, 2))  # for random numbers drawn between steps
            self.done, self._step = number + 1, None
            self._finish_step(step, end)
        self._finish()

    def _on_early_exit(self, step: Step) -> None:
        """Record that the loop over a step was left early, for example by `break`."""
        self._step = None
        if step.begun:
            self._unfinished_step = step
        if self._save_requested and self.leads:
            say(
                "requested checkpoint not saved, because the loop left step "
                f"{step.number} unfinished"
            )

    def _finish_step(self, step: Step, end: str) -> None:
        """Agree on whether to continue, then report and save if due."""
        flags, on_cpu = self._agreement, self.device.type == "cpu"
        flags[0] = float(bool(self._stop))
        flags[1] = step.loss_sum if on_cpu else 0.0
        flags[2] = float(self.leads and self._reporter.due)
        self._run_collective(lambda: self._all_reduce(flags), end)
        # Reading a number from a GPU blocks, so the loss is read only if it is reported. The first
        # all-reduce comes before, because a GPU would wait silently for a missing worker.
        reads_loss = on_cpu or self._reads_next_loss or self.done == self.total
        stopping, self._reads_next_loss = bool(flags[0]), bool(flags[2])
        if reads_loss and not on_cpu:
            flags[1] = step.loss_sum
            self._run_collective(lambda: self._all_reduce(flags[1:2]), end)
        if reads_loss:
            self.loss = float(flags[1])
        if self.leads:
            jobs.record_step(self.done)
            if stopping or (reads_loss and (self._reporter.due or self.done == self.total)):
                loss = {} if self.loss is None else {"loss": self.loss}
                self._reporter.report(self.done, {**loss, **self._logged})
            waited = time.monotonic() - self._saved_at
            if not stopping and (self._save_requested or waited >= self._save_every):
                self._save_if_possible()
        if stopping and self.done < self.total:
            self._save_and_exit()

    def _all_reduce(self, numbers: Any) -> None:
        wait_for(dist.all_reduce(numbers, group=self._group, async_op=True))

    def _run_collective(self, action: Callable[[], Any], where: str) -> None:
        """Run a collective operation; if it fails after SIGTERM, exit without a checkpoint."""
        try:
            action()
        except (dist.DistError, RuntimeError) as error:
            if not self._stop and "Timed out" in str(error):
                raise TrainingError(
                    f"worker {self.generation.rank} timed out waiting for another worker at "
                    f"{where}. If one worker has extra work, such as evaluation on worker 0, raise "
                    "the `patience` of join"
                ) from error
            if not self._stop:
                raise
            say(
                f"stopping without a checkpoint after step {self.done}, because another worker has "
                f"exited: {first_line(error)}"
            )
            jobs.leave()

    # ---------------------------------------------------------------- checkpoints

    def save(self) -> None:
        """Save a checkpoint now, on the leader only.

        If it is called during a step, when the registered objects are inconsistent, the checkpoint
        is saved at the end of the step, and a write failure is only logged. Raises `TrainingError`
        if `register` wasn't called, or the loop over the batches of a step was left early, so that
        the registered objects may be ahead of the finished steps. If this raises OSError, earlier
        checkpoints remain.
        """
        if self._registered is None:
            message = (
                "save() needs registered objects; call run.register(model=..., optimizer=...) first"
            )
            raise TrainingError(message)
        if self._unfinished_step is not None:
            raise TrainingError(
                f"the loop left step {self._unfinished_step.number} unfinished, so the registered "
                "objects match no step; break before `for batch in step:`, then save"
            )
        if self._step is not None:
            self._save_requested = True
            return
        if self.leads:
            self._save()

    def _save(self) -> None:
        assert self._registered is not None
        self._save_requested = False
        if self._saved_step == self.done:
            return
        states = {name: target.state_dict() for name, target in self._registered.items()}
        state = {
            "kind": _KIND,
            "kept": states,
            "gradients": _gradients(self._registered),
            "order": self.order.state(),
            "loss": self.loss,
        }
        save_checkpoint(self.done, state, self.generation.job.checkpoint_dir)
        self._saved_at, self._saved_step = time.monotonic(), self.done

    def _save_if_possible(self) -> None:
        try:
            self._save()
        except OSError as error:
            say(
                f"failed to save a checkpoint after step {self.done}; the previous one remains: "
                f"{error}"
            )
            self._saved_at = time.monotonic()

    def _save_and_exit(self) -> NoReturn:
        if self.leads:
            try:
                self._save()
            except OSError as error:
                message = f"stopping, but step {self.done} couldn't be saved: {error}"
                raise TrainingError(message) from error
            jobs.record_saved(self.done)  # `_save` does nothing if this step is on disk
            say(f"stopping: saved after step {self.done} of {self.total}")
            self._reporter.flush()
        leave_group()
        jobs.leave()

    def _finish(self) -> None:
        if self.leads:
            self._save_if_possible()
            say(f"all {self.total} steps are done")
            self._reporter.flush()


def join(
    samples: int,
    batch: int,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    parts: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    whole: bool = False,
    save_every: float = SAVE_EVERY,
    report_every: float = REPORT_EVERY,
    backend: str | None = None,
    patience: float = JOIN_TIMEOUT.total_seconds(),
) -> Run:
    """Join the other workers of this generation, and return the training run.

    All random numbers are seeded, so that all workers create the same model.

    Raise `TrainingError` if a number is out of range, the job has parameter servers, or another
    worker doesn't join.

    Parameters
    ----------
    samples : int
        Number of samples in the data set.
    batch : int
        Samples per mini-batch, summed over all workers.
    epochs, steps : int
        Length of the training; exactly one of the two.
    parts : int, optional
        Number of parts of a mini-batch; a worker computes its parts one by one. By default 8, or
        the number of samples in a mini-batch if that is smaller. Workers beyond it are idle.
    seed : int, optional
        Random seed of the data order and of all other random numbers.
    shuffle : bool, optional
        Whether to shuffle the samples in every epoch.
    whole : bool, optional
        Whether to drop an incomplete last mini-batch of an epoch.
    save_every, report_every : float, optional
        Seconds between two checkpoints, and between two reports.
    backend : str, optional
        Backend of the process group; by default NCCL if every process has its own GPU, otherwise
        gloo.
    patience : float, optional
        Timeout of workers for each other, in seconds.
    """
    if (epochs is None) == (steps is None):
        raise TrainingError("expected exactly one of epochs and steps")
    batch = checked_integer("batch", batch, 1, MAX_NUMBER)
    order = Order(samples, batch, min(8, batch) if parts is None else parts, seed, shuffle, whole)
    if steps is not None:
        total = checked_integer("steps", steps, 1, MAX_NUMBER)
    else:
        total = checked_integer("epochs", epochs, 1, MAX_NUMBER) * order.steps
    timeout = timedelta(seconds=checked_seconds("patience", patience))
    generation = current()
    if generation.job.ps:
        raise TrainingError(
            "all-reduce training uses no parameter servers, but the job has "
            f"{generation.job.ps}; remove `ps` from the job file"
        )
    if generation.rank == 0 and generation.world > order.parts:
        say(f"{generation.world} workers for {order.parts} parts: raise parts, or lower workers")
    join_group(generation, backend=backend, timeout=timeout)
    group = None
    if dist.get_backend() != "gloo":  # agreements between workers must not wait for a GPU
        group = dist.new_group(backend="gloo", timeout=timeout)
        hold(group)
    seed_all(order.part_seed(0, 0, 3))  # for the creation of the model
    return Run(
        generation, order, total, save_every=save_every, report_every=report_every, group=group
    )


def _unwrapped(model: Any) -> Any:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _gradients(registered: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return gradients that later steps add to; empty if the script cleared them."""
    gradients = {
        name: {
            path: parameter.grad
            for path, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        for name, model in registered.items()
        if isinstance(model, torch.nn.Module)
    }
    nonzero = any(bool(grad.any()) for grads in gradients.values() for grad in grads.values())
    return gradients if nonzero else {}


def _set_gradients(registered: dict[str, Any], gradients: dict[str, dict[str, Any]]) -> None:
    for name, saved in gradients.items():
        for path, parameter in registered[name].named_parameters():
            if path in saved:
                parameter.grad = saved[path].to(parameter.device)


def _check_states(registered: dict[str, Any]) -> None:
    for name, target in registered.items():
        if not (hasattr(target, "state_dict") and hasattr(target, "load_state_dict")):
            kind = type(target).__name__
            raise TrainingError(f"can't save {name}: {kind} has no state_dict")
        state = target.state_dict()
        if isinstance(target, torch.nn.Module):  # its tensors may be large, and can be saved
            state = {key: value for key, value in state.items() if not torch.is_tensor(value)}
        serialize({name: state}, f"the state of {name}")
