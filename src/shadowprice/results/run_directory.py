"""Run directory: its format, writing, reading and integrity checks."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.results.advice import JobAdvice

RUN, DECISIONS, PAYMENTS = "run.json", "decisions.jsonl", "payments.jsonl"
ADVICE, REPORT, JOURNAL = "advice.jsonl", "report.html", "journal.jsonl"
TABLES: Final = ("jobs", "slots", "allocations", "heat")
FILES: Final = frozenset(
    {RUN, DECISIONS, PAYMENTS, ADVICE, REPORT, JOURNAL, *(f"{table}.parquet" for table in TABLES)}
)
FORMAT: Final = 1
"""Version of the run directory's format."""

_MAX_FOLDER_CHARS: Final = 60  # at most 240 bytes, 249 with the digest; file systems allow 255

_ESCAPES: Final = "backslashreplace"
"""Error handler that writes undecodable bytes of a path as JSON escapes."""

Fields = dict[str, Any]
"""Keys and values of a JSON object."""


@dataclass(frozen=True, eq=False)
class RunData:
    """Content of a run directory.

    Parameters
    ----------
    info : dict
        ``run.json``.
    jobs, slots, allocations, heat : polars.DataFrame
        The tables; see `tables` for their columns.
    decisions : callable
        Yields the decision records in order, as `tables.decision_records` does. Its argument
        selects whether they include committed plans.
    payments : callable or None
        Yields the payment records; None if the policy doesn't charge.
    advice : mapping of str to JobAdvice
        Advice on refused jobs, by job, if it was requested.
    """

    info: Fields
    jobs: pl.DataFrame
    slots: pl.DataFrame
    allocations: pl.DataFrame
    heat: pl.DataFrame
    decisions: Callable[[bool], Iterator[Fields]]
    payments: Callable[[], Iterator[Fields]] | None
    advice: Mapping[str, JobAdvice] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        # The callables refer to the engine or to a directory, so pickle their records instead.
        decisions = partial(_with_or_without_plans, list(self.decisions(True)))
        payments = None if self.payments is None else partial(iter, list(self.payments()))
        return self.__dict__ | {"decisions": decisions, "payments": payments}

    @property
    def slot_count(self) -> int:
        """Number of simulated slots; the slot table omits most slots of long idle stretches."""
        if not len(self.slots):
            return 0
        return int(self.slots.item(-1, "slot")) - int(self.slots.item(0, "slot")) + 1

    @property
    def summary(self) -> Fields:
        """Summary metrics."""
        summary: Fields = self.info["summary"]
        return summary

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return str(self.info["policy"])

    @property
    def server_names(self) -> list[str]:
        """Names of the servers, in the order of their positions in the tables."""
        return server_names(self.info)


def folder_name(policy: str) -> str:
    """Return the directory name of a policy's run.

    ``policy`` is a label, which may contain spaces, and paths as in ``prices=fixed:FILE``. A digest
    distinguishes names whose slashes were replaced or whose end was cut off.
    """
    name = "-".join(policy.split())
    portable = name.replace("/", "_")[:_MAX_FOLDER_CHARS]
    if portable == name:
        return name
    return f"{portable}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"


def is_run(path: Path) -> bool:
    """Return whether a directory contains regular files of a run and nothing else."""
    entries = list(path.iterdir())
    names = {entry.name for entry in entries}
    if RUN not in names or not names <= FILES:
        return False
    if any(entry.is_symlink() or not entry.is_file() for entry in entries):
        return False
    try:
        info = _load_info(path / RUN)
    except (ValueError, OSError):
        return False
    return {"format", "policy", "versions"} <= info.keys()


def write_run(run: RunData, folder: Path) -> None:
    """Write a run into an existing directory, without its report.

    ``run.json`` is written last, so a directory that contains it is complete.
    """
    write_lines(folder / DECISIONS, run.decisions(True))
    if run.payments is not None:
        write_lines(folder / PAYMENTS, run.payments())
    if run.advice:
        write_lines(folder / ADVICE, (job_advice.record() for job_advice in run.advice.values()))
    for name in TABLES:
        frame: pl.DataFrame = getattr(run, name)
        # Write through memory, because polars reports a full disk as a damaged file.
        content = io.BytesIO()
        frame.write_parquet(content, compression="zstd")
        (folder / f"{name}.parquet").write_bytes(content.getbuffer())
    files = {
        entry.name: _digest(entry)
        for entry in sorted(folder.iterdir())
        if entry.name in FILES - {RUN, REPORT}
    }
    record = {key: value for key, value in run.info.items() if key != "digest"} | {"files": files}
    write_json(folder / RUN, {**record, "digest": _record_digest(record)})


def write_lines(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write records as JSON Lines."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    with path.open("w", encoding="utf-8", errors=_ESCAPES, newline="\n") as file:
        for record in records:
            file.write(encode(record) + "\n")


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Write a record as indented JSON."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8", errors=_ESCAPES)


def read_run(folder: Path) -> RunData:
    """Read a run directory."""
    info = read_info(folder)
    payments = folder / PAYMENTS

    def decisions(plans: bool) -> Iterator[Fields]:
        return _with_or_without_plans(read_decisions(folder), plans)

    return RunData(
        info=info,
        **{name: read_table(folder, name) for name in TABLES},
        decisions=decisions,
        payments=(lambda: read_lines(payments)) if payments.exists() else None,
        advice=read_advice(folder),
    )


def _with_or_without_plans(records: Iterable[Fields], plans: bool) -> Iterator[Fields]:
    for record in records:
        yield record if plans else {k: value for k, value in record.items() if k != "plan"}


def read_advice(folder: Path) -> dict[str, JobAdvice]:
    """Return the advice in a run directory, by job; empty if none was requested."""
    path = folder / ADVICE
    if not path.exists():
        return {}
    return {record["job"]: JobAdvice.of(record) for record in read_lines(path)}


def read_info(folder: Path) -> Fields:
    """Read ``run.json`` of a run directory, and verify the digests of its files.

    Raises `InputError` if it isn't a run directory, is damaged or has an unknown format.
    """
    path = folder / RUN
    try:
        if not path.is_file():
            hint = "give the directory that `shadowprice simulate --out` wrote"
            problem = "holds no run" if folder.is_dir() else "is not a run directory"
            raise InputError(Fault(str(folder), problem, hint))
        info = _load_info(path)
        version = info["format"]
        if not isinstance(version, int) or isinstance(version, bool):
            raise TypeError("the format is a number")
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(Fault(str(path), "is damaged", _RERUN_HINT)) from error
    if version != FORMAT:
        message = f"unknown format {quote_for_display(version)}; expected {FORMAT}"
        hint = "use the version of shadowprice that wrote it, or run the simulation again"
        raise InputError(Fault(str(path), message, hint))
    _verify(folder, info)
    return info


_RERUN_HINT: Final = "run the simulation again"


def _load_info(path: Path) -> Fields:
    """Return the JSON object in ``run.json`` without checking its keys.

    Raises `ValueError` or `OSError` if it is unreadable, too large or not a JSON object.
    """
    if path.stat().st_size > bounds.RUN_FILE.maximum:
        raise ValueError(bounds.RUN_FILE.message(path.stat().st_size))
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(info, dict):
        raise ValueError("is not an object")  # callers catch ValueError for every kind of damage
    return info


def _verify(folder: Path, info: Fields) -> None:
    """Refuse a run whose files have changed since they were written.

    Later readers can therefore rely on the columns, types and references of the files.
    """
    record = {key: value for key, value in info.items() if key != "digest"}
    files = info.get("files")
    if info.get("digest") != _record_digest(record) or not isinstance(files, dict):
        message = "is damaged: its content has changed"
        raise InputError(Fault(str(folder / RUN), message, _RERUN_HINT))
    # Files with a known name that were added after the run was written.
    added = sorted(
        name for name in FILES - {RUN, REPORT} - files.keys() if (folder / name).exists()
    )
    if added:
        raise InputError(Fault(str(folder / added[0]), "does not belong to this run", "remove it"))
    for name, digest in files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise InputError(Fault(str(path), "is missing or damaged", _RERUN_HINT))
        try:
            actual = _digest(path)
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise InputError(Fault(str(path), message)) from error
        if actual != digest:
            message = "is damaged: its content has changed"
            raise InputError(Fault(str(path), message, _RERUN_HINT))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_digest(record: Fields) -> str:
    text = json.dumps(record, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_lines(path: Path, containing: str = "") -> Iterator[Fields]:
    """Yield the records of a JSON Lines file, without parsing lines that lack ``containing``."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if containing in line:
                    try:
                        yield json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise InputError(Fault(f"{path}: line {number}", "is damaged")) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Fault(str(path), "cannot be read", _RERUN_HINT)) from error


def read_table(folder: Path, name: str) -> pl.DataFrame:
    """Read a table of a run directory."""
    path = folder / f"{name}.parquet"
    try:
        with path.open("rb") as file:  # polars refuses paths that aren't valid text
            return pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(Fault(str(path), "is missing or damaged", _RERUN_HINT)) from error


def read_decisions(folder: Path, containing: str = "") -> Iterator[Fields]:
    """Yield the records of ``decisions.jsonl`` whose lines contain a text."""
    return read_lines(folder / DECISIONS, containing)


def server_names(info: Fields) -> list[str]:
    """Return the names of a run's servers, in the order of their positions in the tables."""
    return [name for name, _ in info["cluster"]["servers"]]


def display_outcome(outcome: str) -> str:
    """Return the displayed word for an outcome: ``refused`` for ``rejected``.

    The format of ``decisions.jsonl`` uses ``rejected``; every other output says ``refused``.
    """
    return "refused" if outcome == "rejected" else outcome
