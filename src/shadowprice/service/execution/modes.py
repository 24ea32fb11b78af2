"""Checks of the executor and of jobs against the service's settings and stored data."""

from __future__ import annotations

import pwd
import secrets
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import JobSpec
from shadowprice.core.wording import quote_for_display
from shadowprice.executors.contract import Executor, KeepsLocalRecords
from shadowprice.executors.generations.disk import create_file, sync_directory
from shadowprice.service.settings import NO_EXECUTOR, ServiceSettings
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.store import Store
from shadowprice.service.uploads import UploadStore

# The same random mark is in both places; see `check_executor_identity`.
IDENTITY_FILE: Final = "mark"  # in the executor's directory
IDENTITY_KEY: Final = "executor"  # in the store

WITHOUT_UPLOADS_HINT: Final = (
    "put them into the container image (run.image), or on file systems that jobs see (run.workdir)"
)
"""Hint for jobs of executors that take no files from their submitters."""


def check_executor(settings: ServiceSettings, executor: Executor | None) -> None:
    """Raise `InputError` if no executor would run jobs, or if ``--observe`` needs another."""
    if executor is None and not settings.observe:
        raise InputError(Fault("--executor", "nothing would run", "add --observe"))
    if settings.observe and executor is not None and not executor.capabilities.observes:
        message = f"{settings.executor} can't observe jobs of other schedulers"
        hint = f"use --executor {NO_EXECUTOR}, which only simulates decisions"
        raise InputError(Fault("--executor", message, hint))


def check_users(settings: ServiceSettings, executor: Executor | None) -> None:
    """Raise `InputError` if the executor can't run jobs as the users of ``--allow-user``."""
    if not settings.users or executor is None or settings.observe:
        return
    if not executor.capabilities.isolates_users:
        hint = "leave it out, or start the service as root with --executor local"
        raise InputError(Fault("--allow-user", "this service runs all jobs as its own user", hint))
    for name in {user for users in settings.users.values() for user in users}:
        try:
            uid = pwd.getpwnam(name).pw_uid
        except KeyError:
            message = f"unknown user {quote_for_display(name)}"
            raise InputError(Fault("--allow-user", message, "create the user first")) from None
        if uid == 0:
            raise InputError(Fault("--allow-user", "jobs may not run as root", "name another user"))


def user_diagnostic(settings: ServiceSettings, spec: JobSpec, place: str) -> Fault | None:
    """Return the problem with a job's user, or None. ``place`` is the job's place in the input."""
    if spec.run is None:
        return None
    allowed = settings.users_of(spec.tenant)
    if spec.run.user in allowed or (spec.run.user is None and not settings.users):
        return None
    location = f"{place}.run.user".lstrip(".")
    choices = f"one of: {', '.join(allowed)}" if allowed else "ask the operator (--allow-user)"
    if spec.run.user is None:
        return Fault(location, "is missing: each job must name its user here", choices)
    if not settings.users:
        hint = "leave it out: this service runs jobs as its own user"
        return Fault(location, f"{quote_for_display(spec.run.user)} is not allowed", hint)
    message = f"{quote_for_display(spec.run.user)} is not allowed to this tenant"
    return Fault(location, message, choices)


def container_diagnostic(executor: Executor, spec: JobSpec, place: str) -> Fault | None:
    """Return the problem with a container that the executor can't run; None without a problem."""
    if executor.capabilities.runs_containers or spec.run is None:
        return None
    key = next((key for key in ("image", "pod") if getattr(spec.run, key) is not None), None)
    if key is None:
        return None
    location = f"{place}.run.{key}".lstrip(".")
    hint = "remove it, and name the programs of the machines in run.command and run.env"
    return Fault(location, "this service runs jobs without containers", hint)


def upload_diagnostic(uploads: UploadStore | None, spec: JobSpec, place: str) -> Fault | None:
    """Return the problem with a job's upload: unknown, or unsupported; None without a problem."""
    if spec.run is None or spec.run.upload is None:
        return None
    location = f"{place}.run.upload"
    if uploads is None:
        return Fault(location, "jobs of this service get no files", WITHOUT_UPLOADS_HINT)
    if uploads.find(spec.tenant, spec.run.upload) is None:
        shown = quote_for_display(spec.run.upload)
        hint = "send its files first: shadowprice submit --upload, or PUT /v1/uploads/DIGEST"
        return Fault(location, f"unknown upload {shown} of the job's tenant", hint)
    return None


def check_mode(store: Store, open_jobs: int, *, observe: bool) -> None:
    """Store whether the service observes; raise `InputError` if that changes with open jobs."""
    mode, stored = ("observe" if observe else "command"), store.get("mode")
    if stored is not None and stored != mode and open_jobs:
        if observe:
            status, hint = "really run", "leave --observe out"
        else:
            status, hint = "only observed", "add --observe"
        message = f"holds {open_jobs} open jobs that were {status}"
        hint = f"{hint}, cancel them first, or use a new data directory"
        raise InputError(Fault(f"--data {store.shown}", message, hint))
    if stored != mode:
        with store.transaction() as connection:
            store.put(connection, "mode", mode)


def check_executor_identity(
    state: DurableState, executor: Executor | None, *, nothing_runs: bool
) -> bool:
    """Check that the executor's local records belong to the store; return whether they don't.

    With other records, the executor wouldn't know the running jobs and would start them twice. So
    store and records carry the same random mark. A copy of the store has no such records.

    ``nothing_runs`` is the operator's assertion that no job of this store, or of its copies, still
    runs. With it, other records are accepted, and the jobs that ran are lost. Raise `InputError`
    if the records differ without it, or if the mark can't be read or written.
    """
    if not isinstance(executor, KeepsLocalRecords):
        return False
    store, directory = state.store, executor.directory
    stored, present = store.get(IDENTITY_KEY), _read_mark(directory)
    if stored is None:  # no executor with local records has run jobs of this store
        differs = bool(state.engine.running or state.engine.unacknowledged)
    else:
        differs = stored != present
    if differs and not nothing_runs:
        foreign = f"the executor's records in {directory} don't belong to these data"
        hint = (
            "start with the executor directory that these data were used with; if every machine "
            "that ran their jobs is off, add --nothing-runs"
        )
        message = f"{foreign}; running jobs would start twice"
        raise InputError(Fault(f"--data {store.shown}", message, hint))
    mark = present or _create_mark(directory)
    if mark != stored:
        with store.transaction() as connection:
            store.put(connection, IDENTITY_KEY, mark)
    return differs


def _read_mark(directory: Path) -> str | None:
    try:
        return (directory / IDENTITY_FILE).read_text(encoding="ascii") or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        fault = Fault(str(directory / IDENTITY_FILE), f"cannot be read: {reason}")
        raise InputError(fault) from error


def _create_mark(directory: Path) -> str:
    mark = secrets.token_hex(16)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_file(directory / IDENTITY_FILE, mark.encode())
        sync_directory(directory)
    except OSError as error:
        hint = "check that it is a directory that this user can write"
        message = f"cannot be written: {error.strerror}"
        raise InputError(Fault(str(directory), message, hint)) from error
    return mark
