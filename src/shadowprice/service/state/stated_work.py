"""Stated work that the slots of live jobs have covered, at the speed that the jobs state.

For a job that states no length, the length that was predicted at its decision counts as stated.

A job covers work while its processes run. Its reports don't count, because they could be wrong on
purpose. The cost of a restart doesn't count, up to half of a slot. Work that is repeated after a
lost server or a stop by the service counts once. Restarts and repeated work count each time if the
job itself caused them: it failed, or its owner revised it since its last start. After a revision of
the speed, all covered work counts at the new speed.
"""

from __future__ import annotations

import numpy as np

from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO, Job
from shadowprice.core.specs import JobSpec
from shadowprice.engine.job_record import JobRecord
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.submission import resolve_job


def stated_job(batch: Batch, record: JobRecord) -> Job:
    """Return a job at the speed that it states."""
    name = record.job.name
    view, spec = batch.state.views[name], batch.state.specs[name]
    if not view.measured and view.predicted is None:
        return record.job  # neither its speed curve nor its length was ever corrected
    cached = batch.state.stated_jobs.get(name)
    if cached is not None and cached[0] is spec:
        return cached[1]
    cluster = batch.engine.cluster
    try:
        parsed = JobSpec.model_validate(spec)
        job = resolve_job(
            parsed, cluster, batch.calendar, view.arrived, key=name, length=view.first_length
        )
    except InputError:  # the servers changed
        return record.job
    batch.state.stated_jobs[name] = spec, job
    return job


def has_covered_stated_work(view: JobView, record: JobRecord) -> bool:
    """Return whether the slots of a job have covered all its stated work."""
    job = record.job
    return job.bag is None and _covered_work(view, record) >= job.work * MICRO


def _caused_restart(view: JobView, record: JobRecord) -> bool:
    """Return whether the job caused its restart: it failed, or was revised, while it ran before."""
    return view.blamed >= record.generation - 1 > 0


def _covered_work(view: JobView, record: JobRecord) -> int:
    """Return the covered work of a job whose newest generation may begin with this event.

    A job that isn't known to save its progress does all work of its previous generation again. The
    repeated work doesn't count, unless the job caused the restart.
    """
    begins = record.generation > view.generation
    if begins and record.job.resumable is not True and not _caused_restart(view, record):
        return view.covered_before
    return view.covered


def nanoseconds_run(batch: Batch, record: JobRecord, slot: int) -> int:
    """Return the nanoseconds that a job's newest generation has run in a slot so far."""
    view = batch.state.views[record.job.name]
    if view.started != record.generation or view.running_since is None:
        return 0
    start = max(batch.calendar.begins(slot), view.running_since)
    return max(0, min(batch.calendar.ends(slot), batch.now) - start)


def pays_restart(batch: Batch, record: JobRecord, slot: int) -> bool:
    """Return whether a slot begins with a restart of a job that costs time."""
    has_cost = record.generation > 1 or batch.engine.cluster.restart_first
    command = batch.state.desired.get(record.job.name)
    return has_cost and command is not None and command.slot == slot


def covered_in_slot(batch: Batch, record: JobRecord, slot: int) -> int:
    """Return the stated work that a running slot has covered, in millionths of a mini-batch."""
    ran = nanoseconds_run(batch, record, slot)
    if not ran:
        return 0
    job, placement = stated_job(batch, record), batch.engine.running[record.job.name]
    workers, colocated = placement.total_workers, placement.colocated
    gain = job.gain(workers, colocated=colocated)
    restarts = pays_restart(batch, record, slot)
    if restarts and not _caused_restart(batch.state.views[record.job.name], record):
        # At most half of a slot is free, because the owner states the restart cost.
        gain = max(gain // 2, job.gain(workers, colocated=colocated, moved=True))
    return gain * job.work * MICRO * ran // (job.required * batch.calendar.slot_length(slot))


def begin_generation(batch: Batch, name: str) -> None:
    """Uncount the work that a new generation repeats, unless its job caused the restart."""
    view = batch.state.views.get(name)
    if view is not None and view.covered:
        covered = _covered_work(view, batch.engine.jobs[name])
        batch.update_view(name, covered=covered, covered_before=covered)


def uncount_repeated(batch: Batch, record: JobRecord, measured: int) -> None:
    """Uncount the share of saved work that a generation repeats, given its first report."""
    view = batch.state.views[record.job.name]
    if record.job.resumable is not True or _caused_restart(view, record):
        return
    covered = view.covered * measured // record.measured
    before = min(covered, view.covered_before)
    batch.update_view(view.key, covered=covered, covered_before=before)


def rescale_covered(batch: Batch, before: Job, after: Job) -> None:
    """Count the covered work of an open job at its revised speed; it is at least its progress."""
    view, record = batch.state.views[after.name], batch.engine.open_jobs[after.name]
    if not view.covered:
        return
    ratio = _minibatches_per_process(after) / _minibatches_per_process(before)
    done = record.progress * after.work * MICRO // after.required
    covered = max(int(view.covered * ratio), done)
    covered_before = min(covered, int(view.covered_before * ratio))
    batch.update_view(after.name, covered=covered, covered_before=covered_before)


def _minibatches_per_process(job: Job) -> float:
    """Return the mini-batches of a slot per process, with the best worker count."""
    gains = np.maximum(job.gains, job.internal_gains) / (job.worker_counts + job.ps_counts)
    return float(gains.max()) * job.work / job.required
