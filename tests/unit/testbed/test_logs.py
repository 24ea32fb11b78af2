"""Where kubelets keep logs of pods: each its own, and the machine's as they were afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.testbed.logs import OWN, apart


def test_every_process_finds_its_own_and_the_place_is_given_back(tmp_path: Path) -> None:
    place, lock = tmp_path / "log" / "pods", tmp_path / "lock"
    place.mkdir(parents=True)
    (place / "before").touch()
    nodes = [tmp_path / name for name in ("one", "two")]
    for node in nodes:
        (node / OWN).mkdir(parents=True)
    writes = f"from pathlib import Path; (Path({str(place)!r}) / Path.cwd().name).touch()"
    with apart(lambda: True, place, lock), apart(lambda: False, place, lock):
        for node in nodes:
            subprocess.run([sys.executable, "-c", writes], cwd=node, check=True)
        assert [[one.name for one in (node / OWN).iterdir()] for node in nodes] == [
            ["one"],
            ["two"],
        ]
    assert [one.name for one in place.iterdir()] == ["before"]


def test_who_is_in_the_middle_of_it_keeps_it(tmp_path: Path) -> None:
    place, lock = tmp_path / "pods", tmp_path / "lock"
    others = True
    with apart(lambda: others, place, lock):
        assert place.is_symlink()
    assert place.is_symlink()
    others = False
    with apart(lambda: others, place, lock):
        assert place.is_symlink()
    assert not place.is_symlink()
    assert not place.exists()
