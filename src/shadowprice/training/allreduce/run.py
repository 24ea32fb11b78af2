"""The context that a training script adopts: it goes on where the job was, and ends when told to.

.. code-block:: python

    run = training.join(len(data), batch=96, epochs=20)
    model = run.wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.keep(model=model, optimizer=optimizer)
    for step in run.steps(data):
        for images, labels in step:
            step.backward(criterion(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shadowprice import jobs
from shadowprice.training import checkpoints
from shadowprice.training.allreduce.buffers import Buffers
from shadowprice.training.allreduce.loading import batches
from shadowprice.training.allreduce.reduction import Reduction
from shadowprice.training.allreduce.step import Step
from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import (
    PATIENCE,
    Generation,
    current,
    hold,
    join_group,
    leave_group,
    say,
    wait_for,
    workers,
)
from shadowprice.training.randomness import seed_all
from shadowprice.training.reporting import Reporter
from shadowprice.training.sampling import Order

SAVE_EVERY: Final = 600.0
"""Seconds between two checkpoints of a job that is left alone."""

REPORT_EVERY: Final = 2.0
"""Seconds between two reports."""


class Run:
    """A job's training, as far as this generation of it goes; `join` makes it.

    Attributes
    ----------
    generation : Generation
        What this process is among the others.
    order : Order
        Which samples belong to which step.
    total : int
        Steps of the whole training.
    done : int
        Steps done since the job's beginning.
    loss : float or None
        The loss of the newest step over its whole mini-batch; on GPUs, of the newest that was
        reported.
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
        self._loss_wanted = True
        self._group = group
        self._told = torch.zeros(3, dtype=torch.float64)
        hold(self._told)
        self._save_every = save_every
        self._reporter = Reporter(report_every)
        self._models: list[Any] = []
        self._reductions: list[Reduction] = []
        self._kept: dict[str, Any] | None = None
        self._gradients: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, float] = {}
        self._stop: jobs.StopSignal | None = None
        self._step: Step | None = None  # the one that is under way
        self._broken: Step | None = None  # one that was begun, and the loop left before its end
        self._save_asked = False
        self._saved_at, self._saved_step = time.monotonic(), -1

    @property
    def leads(self) -> bool:
        """Whether this is the process that reports and saves."""
        return self.generation.rank == 0

    @property
    def device(self) -> torch.device:
        """What this process computes on."""
        return self.generation.device

    # ---------------------------------------------------------------- setting up

    def wrap(self, model: Any, **options: Any) -> Any:
        """Return a model whose gradients are averaged over the workers.

        Parameters
        ----------
        model : torch.nn.Module
            It is moved to this process's device.
        **options
            For `DistributedDataParallel`: ``find_unused_parameters``, ``bucket_cap_mb``.
        """
        model = model.to(self.device)
        devices = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=devices, **options)
        wrapped.broadcast_buffers = (
            False  # `Buffers` keeps them alike; versions differ in the argument
        )
        self._models.append(wrapped)
        self._reductions.append(Reduction(wrapped))
        return wrapped

    def keep(self, **objects: Any) -> bool:
        """Let objects be as in the newest whole checkpoint, and be saved in those to come.

        Parameters
        ----------
        **objects
            By name, whatever has ``state_dict`` and ``load_state_dict``: models, optimizers,
            learning rate schedules, gradient scalers.

        Returns
        -------
        bool
            Whether there was a checkpoint.

        Raises
        ------
        TrainingError
            If the checkpoint is of another order of the data or of other objects, or an object's
            state is nothing that a checkpoint holds.
        """
        if self._kept is not None:
            raise TrainingError("keep is called twice: name all objects in one call")
        if not objects:
            raise TrainingError("keep what? name the model and its optimizer at least")
        self._kept = {name: _bare(one) for name, one in objects.items()}
        _check_states(self._kept)
        found = checkpoints.load_together(group=self._group)
        if found is not None:
            self._restore(found)
        # From here on a SIGTERM is answered by a checkpoint; before, there is nothing to save.
        self._stop = jobs.StopSignal()
        self._together(lambda: dist.barrier(group=self._group), "the beginning")
        if self.leads:
            jobs.note_restored(self.done)
            say(f"step {self.done} of {self.total}, {workers()}")
        self._saved_at, self._saved_step = time.monotonic(), self.done
        return found is not None

    def _restore(self, found: checkpoints.Restored) -> None:
        assert self._kept is not None
        self.order.check(found.state["order"])
        states = found.state["kept"]
        if states.keys() != self._kept.keys():
            raise TrainingError(
                f"the checkpoint of step {found.step} holds {', '.join(sorted(states))}, this "
                f"script keeps {', '.join(sorted(self._kept))}; keep the same, or begin a new job"
            )
        for name, one in self._kept.items():
            try:
                one.load_state_dict(states[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise TrainingError(
                    f"{name} is not as in the checkpoint of step {found.step}: {error}"
                ) from error
        # Set once the first step begins: scripts clear gradients before.
        self._gradients = found.state.get("gradients", {})
        self.done, self.loss = found.step, found.state["loss"]

    def note(self, **metrics: float) -> None:
        """Let the reports to come say this too: an accuracy, a learning rate."""
        self._notes |= {name: float(value) for name, value in metrics.items()}

    # ---------------------------------------------------------------- going on

    def steps(
        self, data: Any, *, collate: Callable[[Any], Any] | None = None, **options: Any
    ) -> Iterator[Step]:
        """Yield the steps that are left.

        When a step is over, all workers agree whether the job was told to stop; if so they save and
        leave. What follows the loop is reached when all steps are done, and saved.

        Parameters
        ----------
        data : Dataset
            With a length and samples by number.
        collate : callable, optional
            What makes one batch of several samples; by default torch's own.
        **options
            For `DataLoader`: ``num_workers``, ``prefetch_factor``, ``pin_memory``.
        """
        if self._kept is None:
            raise TrainingError("call run.keep(model=..., optimizer=...) before the first step")
        rank, world = self.generation.rank, self.generation.world
        left = range(self.done, self.total)
        loaded = batches(data, self.order, left, rank, world, collate=collate, **options)
        buffers = Buffers([_bare(model) for model in self._models])
        _set_gradients(self._kept, self._gradients)
        self._gradients = {}
        for number in left:
            share = self.order.share(number, rank, world)
            step = Step(
                number, self.order, share, loaded, self._reductions, buffers,
                workers=world, device=self.device,
            )  # fmt: skip
            self._step = step
            try:
                yield step
            except GeneratorExit:
                self._left_within(step)
                raise
            step.check_done()
            end = f"the end of step {number}"
            self._together(buffers.end, end)
            seed_all(self.order.key(number, 0, 2))  # what is drawn between steps
            self.done, self._step = number + 1, None
            self._after(step, end)
        self._finish()

    def _left_within(self, step: Step) -> None:
        """Know of a loop that was left early, by `break` say."""
        self._step = None
        if step.begun:
            self._broken = step
        if self._save_asked and self.leads:
            say(f"not saved: the loop over the steps was left within step {step.number}")

    def _after(self, step: Step, end: str) -> None:
        """Agree on whether to go on; report and save where it is time to."""
        told, on_cpu = self._told, self.device.type == "cpu"
        told[0] = float(bool(self._stop))
        told[1] = step.loss_sum if on_cpu else 0.0
        told[2] = float(self.leads and self._reporter.due)
        self._together(lambda: self._summed(told), end)
        # Asking a GPU for a number waits for it: only where the number will be told, and only once
        # all are here, since a GPU waits for a worker that does not come without a word.
        asked = on_cpu or self._loss_wanted or self.done == self.total
        stopping, self._loss_wanted = bool(told[0]), bool(told[2])
        if asked and not on_cpu:
            told[1] = step.loss_sum
            self._together(lambda: self._summed(told[1:2]), end)
        if asked:
            self.loss = float(told[1])
        if self.leads:
            jobs.note_step(self.done)
            if stopping or (asked and (self._reporter.due or self.done == self.total)):
                self._reporter.report(self.done, {**self._losses(), **self._notes})
            waited = time.monotonic() - self._saved_at
            if not stopping and (self._save_asked or waited >= self._save_every):
                self._save_if_possible()
        if stopping and self.done < self.total:
            self._leave()

    def _losses(self) -> dict[str, float]:
        return {} if self.loss is None else {"loss": self.loss}

    def _summed(self, numbers: Any) -> None:
        wait_for(dist.all_reduce(numbers, group=self._group, async_op=True))

    def _together(self, action: Callable[[], Any], where: str) -> None:
        """Do what needs all workers; one that is gone because all were told to stop is no error."""
        try:
            action()
        except (dist.DistError, RuntimeError) as error:
            if not self._stop and "Timed out" in str(error):
                raise TrainingError(
                    f"another worker did not come to {where} in time: where one of them has more "
                    "to do than the others, as worker 0 that evaluates has, raise the patience of "
                    "join"
                ) from error
            if not self._stop:
                raise
            reason = (str(error).splitlines() or [""])[0]
            say(f"told to stop, but others are gone already; step {self.done} is lost: {reason}")
            jobs.leave()

    # ---------------------------------------------------------------- saving

    def save(self) -> None:
        """Save a checkpoint now, whenever the next one is due; of the leader only.

        Within the loop over a step, what is kept is between two steps: it is saved when the step is
        over, and one that cannot be written then is told as any other.

        Raises
        ------
        TrainingError
            If nothing is kept yet, or the loop over the steps was left within one: what is kept may
            be ahead of the steps that are done.
        OSError
            If it cannot be written; the checkpoints before are untouched.
        """
        if self._kept is None:
            raise TrainingError("save what? call run.keep(model=..., optimizer=...) before")
        if self._broken is not None:
            raise TrainingError(
                f"the loop was left within step {self._broken.number}, so what is kept is of no "
                "step: leave it before `for batch in step:`, and save after it"
            )
        if self._step is not None:
            self._save_asked = True
            return
        if self.leads:
            self._save()

    def _save(self) -> None:
        assert self._kept is not None
        self._save_asked = False
        if self._saved_step == self.done:
            return
        states = {name: one.state_dict() for name, one in self._kept.items()}
        state = {
            "kept": states,
            "gradients": _gradients(self._kept),
            "order": self.order.state(),
            "loss": self.loss,
        }
        checkpoints.save(self.done, state, self.generation.job.checkpoint_dir)
        self._saved_at, self._saved_step = time.monotonic(), self.done

    def _save_if_possible(self) -> None:
        try:
            self._save()
        except OSError as error:
            say(f"no checkpoint after step {self.done}, the one before stands: {error}")
            self._saved_at = time.monotonic()

    def _leave(self) -> NoReturn:
        if self.leads:
            try:
                self._save()
            except OSError as error:
                message = f"told to stop, but step {self.done} could not be saved: {error}"
                raise TrainingError(message) from error
            jobs.note_saved(self.done)  # it may have been on disk already
            say(f"told to stop: saved after step {self.done} of {self.total}")
            self._reporter.flush()
        leave_group()
        jobs.leave()

    def _finish(self) -> None:
        # What is done must not be done again because the signal came while the process was ending.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
    patience: float = PATIENCE.total_seconds(),
) -> Run:
    """Join the other workers of this generation, and return the training that they do together.

    Random numbers are set by the seed, so that all workers make the same model.

    Parameters
    ----------
    samples : int
        Samples of the data set.
    batch : int
        Samples of a mini-batch, over all workers: their number does not change it.
    epochs, steps : int
        How long to train: one of the two.
    parts : int, optional
        Parts of a mini-batch that are computed one at a time: 8, or what a smaller mini-batch has
        samples. More workers than parts are of no use.
    seed : int, optional
        What the order of the data and all random numbers follow from.
    shuffle : bool, optional
        Whether every epoch has an order of its own.
    whole : bool, optional
        Whether a last mini-batch of an epoch that is not full is left out.
    save_every, report_every : float, optional
        Seconds between two checkpoints, and between two reports.
    backend : str, optional
        How tensors travel; by default NCCL between GPUs, gloo otherwise.
    patience : float, optional
        Seconds that workers wait for each other.

    Raises
    ------
    TrainingError
        If a number is out of range, the job has parameter servers, or the others do not come.
    """
    if (epochs is None) == (steps is None):
        raise TrainingError("say how long to train: epochs or steps, one of the two")
    parts = min(8, max(1, batch)) if parts is None else parts
    order = Order(samples, batch, parts, seed, shuffle, whole)
    total = steps if steps is not None else (epochs or 0) * order.steps
    if total < 1:
        raise TrainingError("there is no step to do: epochs and steps have to be 1 or more")
    generation = current()
    if generation.job.ps:
        raise TrainingError(
            f"the job has {generation.job.ps} parameter servers, and adds up gradients without: "
            "leave ps out of its file"
        )
    if generation.rank == 0 and generation.world > order.parts:
        say(f"{generation.world} workers share {order.parts} parts: raise parts, or lower chunks")
    waiting = timedelta(seconds=patience)
    join_group(generation, backend=backend, patience=waiting)
    group = None
    if dist.get_backend() != "gloo":  # what is agreed on never waits for a GPU
        group = dist.new_group(backend="gloo", timeout=waiting)
        hold(group)
    seed_all(order.key(0, 0, 3))
    return Run(
        generation, order, total, save_every=save_every, report_every=report_every, group=group
    )


def _bare(model: Any) -> Any:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _gradients(kept: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return gradients that a later step is to add to; none where they are cleared.

    They are alike on all workers at the end of a step, so one saves them for all.
    """
    found = {
        name: {at: value.grad for at, value in one.named_parameters() if value.grad is not None}
        for name, one in kept.items()
        if isinstance(one, torch.nn.Module)
    }
    some = any(bool(grad.any()) for grads in found.values() for grad in grads.values())
    return found if some else {}


def _set_gradients(kept: dict[str, Any], gradients: dict[str, dict[str, Any]]) -> None:
    for name, found in gradients.items():
        for at, value in kept[name].named_parameters():
            if at in found:
                value.grad = found[at].to(value.device)


def _check_states(kept: dict[str, Any]) -> None:
    for name, one in kept.items():
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            kind = type(one).__name__
            raise TrainingError(f"{name} is a {kind}, which has no state_dict: it cannot be kept")
        if not isinstance(one, torch.nn.Module):
            checkpoints.packed({name: one.state_dict()}, f"the state of {name}")
