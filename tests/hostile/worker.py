"""A process that runs one call after another, under limits that a hostile input may not reach.

It reads cases as JSON lines and prints a line for each: exit status, output, processor time, growth
of its peak memory, and the resulting files. The parent kills it on a hang. A command that runs
until it is stopped gets a process of its own, of which all memory counts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hostile.case import Case, lay_out, snapshot
from tests.hostile.commands import STAYING
from tests.hostile.process import resident
from tests.hostile.serving import serve

MEMORY_LIMIT = 2 << 30
"""Bytes that a call may allocate before the worker dies."""


DEVICES = ("/dev/null", "/dev/full")
"""Paths outside a call's folder; as root, a call could replace them for everybody."""


def answer(case: Case, runs: Path) -> dict[str, Any]:
    """Run one case in a new folder and return the result."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-", dir=runs))
    back = os.open(".", os.O_RDONLY)
    try:
        lay_out(case, folder, runs)
        before = snapshot(folder)
        devices = {path: os.lstat(path) for path in DEVICES}
        os.chdir(folder)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        if case.words[:1] and case.words[0] in STAYING:
            response = serve(case.words, folder, MEMORY_LIMIT)
        else:
            level, began = resident("VmRSS"), time.process_time()
            status, out, err = _captured(case.words)
            seconds = round(time.process_time() - began, 3)
            grown = max(0, resident("VmHWM") - level) >> 20
            response = {"status": status, "out": out, "err": err, "seconds": seconds}
            response["mebibytes"] = grown
        os.fchdir(back)
        after = snapshot(folder)
        replaced = put_back(devices)
    finally:
        os.fchdir(back)
        os.close(back)
        shutil.rmtree(folder, ignore_errors=True)
    return {
        **response,
        "changed": replaced
        + sorted(name for name, what in before.items() if after.get(name) != what),
        "made": sorted(after.keys() - before.keys()),
    }


def put_back(devices: Mapping[str, os.stat_result]) -> list[str]:
    """Restore devices that were replaced; return them."""
    replaced = []
    for path, was in devices.items():
        with contextlib.suppress(FileNotFoundError):
            now = os.lstat(path)
            if (stat.S_IFMT(now.st_mode), now.st_rdev) == (stat.S_IFMT(was.st_mode), was.st_rdev):
                continue
        replaced.append(path)
        with contextlib.suppress(OSError):
            os.mknod(f"{path}.again", was.st_mode, was.st_rdev)
            Path(f"{path}.again").chmod(stat.S_IMODE(was.st_mode))
            Path(f"{path}.again").replace(path)
    return replaced


def _captured(words: tuple[str, ...]) -> tuple[int, str, str]:
    """Call the command line and capture everything that it writes to its descriptors."""
    from shadowprice.cli.main import main

    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            try:
                status = main(list(words))
            # an exception that escapes is a finding, not the end of the worker
            except BaseException as error:
                print(f"escaped: {type(error).__name__}: {error}", file=sys.stderr)
                status = 70
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            for number, saved in zip((1, 2), kept, strict=True):
                os.dup2(saved, number)
                os.close(saved)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(1 << 20).decode("utf-8", "backslashreplace"))
    return status, texts[0], texts[1]


def main() -> None:
    """Run cases from stdin until it ends."""
    from shadowprice.cli import lazy

    # One process makes many calls. Modules that it loaded once are no garbage.
    lazy._load = functools.cache(lazy._load)
    runs = Path(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    if "--unlimited" not in sys.argv:
        import numba  # noqa: F401
        import polars  # noqa: F401  # its thread pool and arenas belong to the baseline

        limit = resident("VmData") + MEMORY_LIMIT
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    cases = io.TextIOWrapper(os.fdopen(os.dup(0), "rb"), encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    gc.freeze()
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115  # a call's own input
    for line in cases:
        replies.write(json.dumps(answer(Case.of(json.loads(line)), runs)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
