"""Worker processes for hostile calls, replaced if they die or hang."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from shadowprice.core.wording import escape_controls
from tests.hostile import documents
from tests.hostile.case import Case
from tests.hostile.documents import text_of
from tests.hostile.process import cpu_seconds, is_runnable

ROOT = Path(__file__).parents[2]
CALL = "from shadowprice.cli.main import run; run()"
HANG = 60.0
"""Processor time after which a call counts as hanging; also the limit without any, in seconds."""


class Worker:
    """One worker process, replaced when it dies.

    Parameters
    ----------
    runs : Path
        Valid run directories by policy.
    limited : bool
        Whether its memory is limited.
    """

    def __init__(self, runs: Path, *, limited: bool = True) -> None:
        self._runs = runs
        self._limited = limited
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, case: Case, patience: float = HANG) -> dict[str, Any]:
        """Run one case; a worker that dies or hangs gives a result with a status of its own."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(case.record()).encode() + b"\n")
        process.stdin.flush()
        began = used = cpu_seconds(process.pid)
        stood = time.monotonic()
        while not select.select([process.stdout], [], [], 1.0)[0]:
            now = cpu_seconds(process.pid)
            if now > used or is_runnable(process.pid):
                used, stood = now, time.monotonic()
            if used - began > patience or time.monotonic() - stood > patience:
                self.stop()
                return _dead("hang", f"no answer after {used - began:.0f} s of CPU")
        line = process.stdout.readline()
        if not line:
            code = process.wait(60)
            self.stop()
            name = signal.Signals(-code).name if code < 0 else f"status {code}"
            return _dead("died", f"the process ended by {name}")
        result: dict[str, Any] = json.loads(line)
        return result

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            words = [sys.executable, "-m", "tests.hostile.worker", str(self._runs)]
            self._process = subprocess.Popen(
                words if self._limited else [*words, "--unlimited"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env={
                    **os.environ,
                    "COLUMNS": "120",
                    "PYTHONHASHSEED": "0",
                    "HOME": str(self._runs),
                    "XDG_CONFIG_HOME": str(self._runs),
                    # Requests must reach no service, even if one runs on this machine.
                    "SHADOWPRICE_SERVER": "http://127.0.0.1:1",
                },
            )
        return self._process

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.wait(60)
            self._process = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _dead(what: str, why: str) -> dict[str, Any]:
    return {
        "status": what, "out": "", "err": why, "seconds": 0.0, "mebibytes": 0,
        "changed": [], "made": [],
    }  # fmt: skip


def judge(
    answer: dict[str, Any],
    *,
    seconds: float = 20.0,
    max_refusal_seconds: float = float("inf"),
    mebibytes: int = 500,
) -> list[str]:
    """Return the faults of a call: effects that no input may have.

    Parameters
    ----------
    answer : dict
        The worker's result.
    seconds, max_refusal_seconds : float
        Maximum processor time of any call, and of a call whose input is refused.
    mebibytes : int
        Maximum memory of a failed call.
    """
    status, out, err = answer["status"], answer["out"], answer["err"]
    faults = [] if status in {0, 1, 2} else [f"ends with {status}"]
    alarms = ("this is a bug", "Traceback", "Warning", "Exception ignored", "escaped:")
    faults += [f"stderr holds {words!r}" for words in alarms if words in err]
    if "Traceback" in out:
        faults.append("stdout holds a trace")
    if status in {1, 2} and not err.strip():
        faults.append("fails without a word")
    for name, text in (("out", out), ("err", err)):
        if escape_controls(text, lines=True) != text:
            faults.append(f"std{name} holds control characters")
    if any(len(line) > 4000 for line in err.split("\n")):
        faults.append("stderr holds a line of more than 4000 characters")
    if err.count("\n") > 120:
        faults.append("stderr holds more than 120 lines")
    if answer["seconds"] > seconds:
        faults.append(f"takes {answer['seconds']:.1f} s of CPU")
    elif status == 2 and answer["seconds"] > max_refusal_seconds:
        faults.append(f"takes {answer['seconds']:.1f} s of CPU to refuse")
    if status and answer["mebibytes"] > mebibytes:
        faults.append(f"takes {answer['mebibytes']} MiB to refuse")
    hidden = (name for name in answer["made"] if name.rsplit("/", 1)[-1].startswith("."))
    faults += [f"leaves {name} behind" for name in hidden]
    # The lock of a data directory stays: if it were removed, two processes could hold it.
    left = [name for name in answer["made"] if not name.endswith("/lock")]
    if status and left:
        faults.append(f"fails and leaves {left[0]}")
    faults += [f"changes {name}" for name in answer["changed"] if not _replaceable(name)]
    return faults


def _replaceable(name: str) -> bool:
    """Whether a file of a case is a result that a command may overwrite."""
    return name.split("/", maxsplit=1)[0] in {"run", "run2", "p.json", "kept"}


RUNS: Mapping[str, tuple[documents.Document, documents.Document, tuple[str, ...]]] = {
    "fifo": (documents.CLUSTER, documents.JOBS, ("-p", "fifo")),
    "oasis": (documents.CLUSTER, documents.JOBS, ("-p", "oasis")),
    "eventful": (
        documents.CLUSTER,
        documents.JOBS,
        ("-p", "backfill", "--incidents", "i.yaml", "--journal"),
    ),
    "money": (documents.MONEY, documents.TYPED, ("-p", "srtf")),
    "places": (documents.TENANTS, documents.PLACES, ("-p", "astraea", "--until", "9 slots")),
    "bags": (documents.CLUSTER, documents.BAGS, ("-p", "oasis")),
}
"""Runs that cases name: their cluster, jobs and options."""


@contextmanager
def good_runs(names: Iterable[str] = RUNS) -> Iterator[Path]:
    """Fill a folder with run directories of `RUNS`."""
    with tempfile.TemporaryDirectory(prefix="hostile-runs-") as name:
        folder = Path(name)
        (folder / "i.yaml").write_text(text_of(documents.INCIDENTS), encoding="utf-8")
        for run in names:
            cluster, jobs, options = RUNS[run]
            (folder / "c.yaml").write_text(text_of(cluster), encoding="utf-8")
            (folder / "j.yaml").write_text(text_of(jobs), encoding="utf-8")
            words = ["simulate", "-c", "c.yaml", "-j", "j.yaml", "-q", "-o", "json", *options]
            subprocess.run(
                [sys.executable, "-c", CALL, *words, "--out", run],
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=300,
            )
        yield folder


def journal_lines(runs: Path) -> list[str]:
    """Return the lines of the journal of the run ``eventful``."""
    return (runs / "eventful" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
