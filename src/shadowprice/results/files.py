"""The run directory: written whole, read back for reports and explanations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from shadowprice.core.errors import Fault, InputError
from shadowprice.results.metrics import summarise

RUN, DECISIONS, PAYMENTS, REPORT, JOURNAL = (
    "run.json",
    "decisions.jsonl",
    "payments.jsonl",
    "report.html",
    "journal.jsonl",
)
TABLES: Final = ("jobs", "slots", "allocations", "heat")
FILES: Final = frozenset(
    {RUN, DECISIONS, PAYMENTS, REPORT, JOURNAL, *(f"{table}.parquet" for table in TABLES)}
)
FORMAT: Final = 2
"""Version of the run directory's format; 1 is read as well (see `_upgraded`)."""

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """Everything a run directory holds.

    Parameters
    ----------
    info : dict
        ``run.json``.
    jobs, slots, allocations, heat : polars.DataFrame
        The tables; see `tables` and `slot_tables` for their columns.
    decisions : callable
        Called with whether committed plans are wanted; yields the decision records in order.
    payments : callable or None
        Yields the payment records; None where the policy does not charge.
    """

    info: Record
    jobs: pl.DataFrame
    slots: pl.DataFrame
    allocations: pl.DataFrame
    heat: pl.DataFrame
    decisions: Callable[[bool], Iterator[Record]]
    payments: Callable[[], Iterator[Record]] | None

    @property
    def summary(self) -> Record:
        """The summary metrics."""
        summary: Record = self.info["summary"]
        return summary

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return str(self.info["policy"])

    @property
    def server_names(self) -> list[str]:
        """Names of the servers, in the order that tables and plans count them."""
        return [name for name, _ in self.info["cluster"]["servers"]]


def folder_name(policy: str) -> str:
    """Return the folder of a policy's run beside others: ``oasis lower=clearing`` has blanks."""
    return "-".join(policy.split())


def is_run(path: Path) -> bool:
    """Return whether a directory holds a run and nothing else."""
    names = {entry.name for entry in path.iterdir()}
    return RUN in names and names <= FILES


def write_run(run: Run, folder: Path) -> None:
    """Write a run into an existing directory, all but its report.

    Parameters
    ----------
    run : Run
        The run.
    folder : Path
        The directory; ``run.json`` is written last, so a directory that has one is complete.
    """
    write_lines(folder / DECISIONS, run.decisions(True))
    if run.payments is not None:
        write_lines(folder / PAYMENTS, run.payments())
    for name in TABLES:
        frame: pl.DataFrame = getattr(run, name)
        frame.write_parquet(folder / f"{name}.parquet", compression="zstd")
    write_json(folder / RUN, run.info)


def write_lines(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write records as JSON Lines."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for record in records:
            file.write(encode(record) + "\n")


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Write a record as indented JSON."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_run(folder: Path) -> Run:
    """Read a run directory.

    Raises
    ------
    InputError
        If it is no run directory, or was written by a later version.
    """
    info = read_info(folder)
    frames = {name: read_table(folder, name) for name in TABLES}
    if info["format"] == 1:
        info["summary"] = summarise(frames["jobs"], frames["slots"])
    payments = folder / PAYMENTS

    def decisions(plans: bool) -> Iterator[Record]:
        for record in read_lines(folder / DECISIONS):
            if not plans:
                record.pop("plan", None)
            yield record

    return Run(
        info=info,
        jobs=frames["jobs"],
        slots=frames["slots"],
        allocations=frames["allocations"],
        heat=frames["heat"],
        decisions=decisions,
        payments=(lambda: read_lines(payments)) if payments.exists() else None,
    )


def read_info(folder: Path) -> Record:
    """Read ``run.json`` of a run directory.

    Raises
    ------
    InputError
        If it is no run directory, or was written by a later version.
    """
    path = folder / RUN
    if not path.is_file():
        mend = "give the directory that `shadowprice simulate --out` wrote"
        found = "holds no run" if folder.is_dir() else "is no run directory"
        raise InputError(Fault(str(folder), found, mend))
    try:
        info: Record = json.loads(path.read_text(encoding="utf-8"))
        version = int(info["format"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(Fault(str(path), "is damaged", "run the simulation again")) from error
    if version > FORMAT:
        raise InputError(
            Fault(str(path), f"has format {version}", f"this version reads up to {FORMAT}; update")
        )
    return info


def read_lines(path: Path, containing: str = "") -> Iterator[Record]:
    """Yield the records of a JSON Lines file of a run.

    Parameters
    ----------
    path : Path
        The file.
    containing : str
        Only lines with this text in them; the others are not parsed.

    Raises
    ------
    InputError
        If the file is absent or a line is damaged.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if containing in line:
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise InputError(Fault(f"{path}: line {number}", "is damaged")) from error
    except OSError as error:
        raise InputError(Fault(str(path), "cannot be read", "run the simulation again")) from error


def read_table(folder: Path, name: str) -> pl.DataFrame:
    """Read one of the tables of a run directory.

    Raises
    ------
    InputError
        If it is missing or damaged.
    """
    path = folder / f"{name}.parquet"
    try:
        table = pl.read_parquet(path)
        return _upgraded(table) if name == "jobs" and "jct" not in table.columns else table
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            Fault(str(path), "is missing or damaged", "run the simulation again")
        ) from error


def outcome_word(outcome: str) -> str:
    """Return what people read for an outcome: a decision ``rejected`` is a job refused.

    ``decisions.jsonl`` says ``rejected``, which programs rely on; everything else says ``refused``.
    """
    return "refused" if outcome == "rejected" else outcome


def _upgraded(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return a job table of format 1 as one of format 2 has it.

    Format 1 says ``rejected`` for refused, and has neither the moment of submission (taken to be
    the beginning of the arrival slot), nor the completion time that counts from it, nor the due
    moment.
    """
    arrival = pl.col("arrival").cast(pl.Float64)
    return jobs.with_columns(
        pl.col("outcome").replace("rejected", "refused"),
        submitted=arrival,
        jct=pl.col("completion") - arrival + 1,
        due=arrival + pl.col("target") + 1,
    )
