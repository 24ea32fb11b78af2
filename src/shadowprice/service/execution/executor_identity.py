"""Check that an executor's local records belong to the service's data.

With other records, the executor wouldn't know the running jobs and would start them twice. So data
and records carry the same random mark, which detects a copy of the data without the records.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.executors.contract import Executor, KeepsLocalRecords
from shadowprice.executors.generations.disk import create_file, sync_directory
from shadowprice.service.state.durable_state import DurableState

IDENTITY_FILE: Final = "mark"  # file of the mark in the executor's directory

IDENTITY_KEY: Final = "executor"  # key of the mark in the store


def check_executor_identity(
    state: DurableState, executor: Executor | None, *, nothing_runs: bool
) -> bool:
    """Refuse an executor's records that don't belong to the data; return whether they are new.

    If they are new, the running jobs are lost. Executors without local records always pass.
    ``nothing_runs`` is an operator's assertion that no job of these data, or of their copies, still
    runs. Raise `InputError` if the records differ without it, or the mark can't be written.
    """
    if not isinstance(executor, KeepsLocalRecords):
        return False
    store, directory = state.store, executor.directory
    stored, present = store.get(IDENTITY_KEY), _mark(directory)
    if stored is None:  # no executor with local records has run jobs of these data
        differs = bool(state.engine.running or state.engine.unacknowledged)
    else:
        differs = stored != present
    if differs and not nothing_runs:
        raise InputError(
            Fault(
                f"--data {store.shown}",
                f"the executor's records in {directory} don't belong to these data; running jobs "
                "would start twice",
                "start with the executor directory that these data were used with; if every "
                "machine that ran their jobs is off, add --nothing-runs",
            )
        )
    mark = present or _new_mark(directory)
    if mark != stored:
        with store.transaction() as connection:
            store.put(connection, IDENTITY_KEY, mark)
    return differs


def _mark(directory: Path) -> str | None:
    try:
        return (directory / IDENTITY_FILE).read_text(encoding="ascii") or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            Fault(str(directory / IDENTITY_FILE), f"cannot be read: {reason}")
        ) from error


def _new_mark(directory: Path) -> str:
    mark = secrets.token_hex(16)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_file(directory / IDENTITY_FILE, mark.encode())
        sync_directory(directory)
    except OSError as error:
        hint = "check that it is a directory that this user can write"
        raise InputError(
            Fault(str(directory), f"cannot be written: {error.strerror}", hint)
        ) from error
    return mark
