"""Completions that shells offer at the end of a line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from shadowprice.cli.main import main


def completion_environment(words: str) -> dict[str, str]:
    """Return the environment in which bash requests completions at the end of a line."""
    return {
        "_SHADOWPRICE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }


def offered(words: str, folder: Path) -> list[str]:
    """Return the completions of bash at the end of a line, without a process for each."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in completion_environment(words).items():
            patch.setenv(name, value)
        patch.chdir(folder)
        assert main([]) == 0
    assert not err.getvalue()
    return out.getvalue().split()
