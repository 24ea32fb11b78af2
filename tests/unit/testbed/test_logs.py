"""Directories of kubelets for logs of pods: one each, and the machine's directory is restored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.testbed.logs import OWN, apart

from tests.support.waiting import WAIT_LIMIT_SECONDS


def test_every_process_finds_its_own_and_the_place_is_given_back(tmp_path: Path) -> None:
    place, lock = tmp_path / "log" / "pods", tmp_path / "lock"
    place.mkdir(parents=True)
    (place / "before").touch()
    nodes = [tmp_path / name for name in ("one", "two")]
    for node in nodes:
        (node / OWN).mkdir(parents=True)
    writes = f"from pathlib import Path; (Path({str(place)!r}) / Path.cwd().name).touch()"
    with apart(place, lock), apart(place, lock):
        for node in nodes:
            subprocess.run(
                [sys.executable, "-c", writes], cwd=node, check=True, timeout=WAIT_LIMIT_SECONDS
            )
        assert [[one.name for one in (node / OWN).iterdir()] for node in nodes] == [
            ["one"],
            ["two"],
        ]
    assert [one.name for one in place.iterdir()] == ["before"]


def test_the_last_user_restores_the_folder(tmp_path: Path) -> None:
    place, lock = tmp_path / "pods", tmp_path / "lock"
    first, second = apart(place, lock), apart(place, lock)
    with first:
        second.__enter__()
    assert place.is_symlink()
    second.__exit__(None, None, None)
    assert not place.is_symlink()
    assert not place.exists()


def test_a_killed_process_is_not_awaited(tmp_path: Path) -> None:
    place, lock = tmp_path / "pods", tmp_path / "lock"
    program = (
        "import os, sys; from pathlib import Path; from tools.testbed.logs import apart\n"
        f"with apart(Path({str(place)!r}), Path({str(lock)!r})): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=WAIT_LIMIT_SECONDS)
    assert done.returncode == -9
    assert place.is_symlink()
    with apart(place, lock):
        assert place.is_symlink()
    assert not place.exists()


def test_simultaneous_last_users_still_restore_it(tmp_path: Path) -> None:
    place, lock = tmp_path / "pods", tmp_path / "lock"
    program = (
        "import sys; from pathlib import Path; from tools.testbed.logs import apart\n"
        f"with apart(Path({str(place)!r}), Path({str(lock)!r})):\n"
        "    print('in', flush=True); sys.stdin.readline()"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    for one in both:
        assert one.stdout is not None
        one.stdout.readline()
    for one in both:
        assert one.stdin is not None
        one.stdin.close()
    for one in both:
        assert one.wait(WAIT_LIMIT_SECONDS) == 0
        one.stdout.close()  # type: ignore[union-attr]
    assert not os.path.lexists(place)
