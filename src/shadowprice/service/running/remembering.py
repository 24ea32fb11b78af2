"""Whether an executor's records of what runs are those of the data that it is to run jobs for.

Who runs jobs beside records that do not know them starts what runs already a second time. So data
and records bear the same mark, and a copy of the data alone is told apart from the data.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.executors.contract import Executor, Remembering
from shadowprice.executors.generations.disk import sync_directory, write_new
from shadowprice.service.truth.truth import Truth

MARK: Final = "mark"
"""File of the records that holds it."""

KEY: Final = "executor"
"""Key under which the store keeps it."""


def check_records(truth: Truth, executor: Executor | None, *, nothing_runs: bool) -> bool:
    """Refuse records that are not those of the data, unless nothing runs any more by any others.

    Parameters
    ----------
    truth : Truth
        The data, read back.
    executor : Executor or None
        What runs jobs; one that keeps its records where jobs run has them everywhere.
    nothing_runs : bool
        Whether an operator knows that nothing runs of what these data ordered, or their copies did.

    Returns
    -------
    bool
        Whether these are other records than before: what was to run is lost.

    Raises
    ------
    InputError
        If the records are others, or cannot be kept.
    """
    if not isinstance(executor, Remembering):
        return False
    store, directory = truth.store, executor.directory
    known, here = store.get(KEY), _mark(directory)
    if known is None:  # no executor with such records has run jobs for these data yet
        others = bool(truth.engine.running or truth.engine.unacknowledged)
    else:
        others = known != here
    if others and not nothing_runs:
        raise InputError(
            Fault(
                f"--data {store.shown}",
                f"what it has running is recorded elsewhere, not in {directory}, and would run "
                "twice",
                "serve where those records are, a backup from the directory that it is of; or, "
                "once every machine that ran its jobs is surely off, add --nothing-runs",
            )
        )
    mark = here or _new_mark(directory)
    if mark != known:
        with store.transaction() as connection:
            store.put(connection, KEY, mark)
    return others


def _mark(directory: Path) -> str | None:
    try:
        return (directory / MARK).read_text(encoding="ascii") or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(Fault(str(directory / MARK), f"cannot be read: {error}")) from error


def _new_mark(directory: Path) -> str:
    mark = secrets.token_hex(16)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_new(directory / MARK, mark.encode())
        sync_directory(directory)
    except OSError as error:
        raise InputError(
            Fault(str(directory), f"cannot be written: {error.strerror}", "give it a directory")
        ) from error
    return mark
