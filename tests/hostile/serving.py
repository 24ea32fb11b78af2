"""Starting the service as a hostile caller would; one that starts is told to end at once."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.hostile.process import cpu_seconds, is_runnable, resident

CALL = "from shadowprice.cli.main import run; run()"
HANG = 60.0
"""Seconds of CPU, or without any, after which a start or an end counts as hanging."""
ENDED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""What a service may end with that was told to end."""


def serve(words: tuple[str, ...], folder: Path, memory: int) -> dict[str, Any]:
    """Start a service in a folder, and end it once it answers.

    It has a process of its own: its threads, its signals and what it keeps open are not for a
    process that answers other calls.

    Parameters
    ----------
    words : tuple of str
        The command line.
    folder : Path
        Where it runs.
    memory : int
        Bytes that it may allocate before it dies of it.

    Returns
    -------
    dict
        ``status`` (0 for one that started, and ended when it was told to; ``hang``; otherwise what
        it ended with), ``out``, ``err``, ``seconds`` of CPU, ``mebibytes`` at its peak.
    """
    used = _cpu_of_children()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [sys.executable, "-c", CALL, *(os.fsencode(word) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
        )
        with suppress(ProcessLookupError):  # it may be over already
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (memory, memory))
        status, peak = _attended(process, out)
        outputs = [_text(file) for file in (out, err)]
    return {
        "status": status,
        "out": outputs[0],
        "err": outputs[1],
        "seconds": round(_cpu_of_children() - used, 3),
        "mebibytes": peak >> 20,
    }


def _attended(process: subprocess.Popen[bytes], out: IO[bytes]) -> tuple[int | str, int]:
    """Wait for a service to answer or to end, end it, and return its status and peak memory."""
    reported, peak = False, 0
    began = used = 0.0
    stood = time.monotonic()
    while process.poll() is None:
        peak = max(peak, resident("VmHWM", process.pid))
        now = cpu_seconds(process.pid)
        if now > used or is_runnable(process.pid):
            used, stood = now, time.monotonic()
        if used - began > HANG or time.monotonic() - stood > HANG:
            process.kill()
            process.wait(60)
            return "hang", peak
        # It prints nothing before it answers.
        if not reported and os.fstat(out.fileno()).st_size:
            process.send_signal(signal.SIGTERM)
            reported, began, stood = True, used, time.monotonic()
        time.sleep(0.05)
    return 0 if reported and process.returncode in ENDED else process.returncode, peak


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(1 << 20).decode("utf-8", "backslashreplace")
