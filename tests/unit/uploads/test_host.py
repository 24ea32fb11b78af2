"""Which processes see the same files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shadowprice.uploads.host import host_identity
from tests.support.waiting import WAIT_LIMIT_SECONDS

PRINT = "from shadowprice.uploads.host import host_identity; print(host_identity())"


def _run(*prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", PRINT]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_SECONDS
    )


def test_processes_of_one_machine_have_one_identity() -> None:
    assert len(host_identity()) == 32
    assert _run().stdout.strip() == host_identity()


def test_other_mounts_are_another_machine() -> None:
    other = _run("unshare", "--mount")
    if other.returncode:
        pytest.skip("no mount namespace can be made here")
    assert len(other.stdout.strip()) == 32
    assert other.stdout.strip() != host_identity()
