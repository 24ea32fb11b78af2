"""``python -m shadowprice`` equals the console script."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_LIMIT_SECONDS

SCRIPT = "import sys; from shadowprice.__main__ import run; sys.argv[0] = 'shadowprice'; run()"


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--version"], 0), (["--help"], 0), (["policies", "drf"], 0), (["policies", "drff"], 2)],
    ids=["version", "help", "command", "error"],
)
def test_the_module_does_what_the_script_does(words: list[str], status: int) -> None:
    said = []
    for way in (["-m", "shadowprice"], ["-c", SCRIPT]):
        done = subprocess.run(
            [sys.executable, *way, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert said[0][0] == status


def test_ctrl_c_during_the_start_leaves_no_traceback(tmp_path: Path) -> None:
    # In the working directory, this module hides a library's.
    (tmp_path / "typer.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "shadowprice", "policies"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
