"""Refusals of ``serve --executor ray`` and ``--on``: one line with a hint, and status 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shadowprice.cli.main import main
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray


@pytest.fixture
def of_another_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """A real head, started by a Ray that reports another version."""
    ray = pytest.importorskip("ray")
    with monkeypatch.context() as patch:
        patch.setattr(ray, "__version__", "2.1.0")
        cluster = RayCluster({})
    yield cluster
    cluster.shutdown()


def _refused(capsys: pytest.CaptureFixture[str], folder: Path, address: str) -> str:
    file = folder / "cluster.yaml"
    servers = [{"name": "one", "capacity": {"cpu": 1}}]
    file.write_text(yaml.safe_dump({"slot": "3s", "horizon": 20, "servers": servers}))
    capsys.readouterr()  # Ray's messages while its cluster started
    words = ["serve", "-c", str(file), "--data", str(folder / "data"), "--listen", "127.0.0.1:0"]
    assert main([*words, "-p", "fifo", "-q", "--executor", "ray", "--address", address]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (
            "somewhere",
            "--address: 'somewhere' is not valid; write auto, HOST:PORT or ray://HOST:PORT",
        ),
        ("127.0.0.1:1", "no Ray answers at 127.0.0.1:1: Connection refused"),
        ("ray://127.0.0.1:1", "no Ray answers at ray://127.0.0.1:1: Connection refused"),
    ],
)
def test_a_wrong_address(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, address: str, says: str
) -> None:
    pytest.importorskip("ray")
    assert says in _refused(capsys, tmp_path, address)


def test_another_version(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, of_another_version: RayCluster
) -> None:
    address = of_another_version.address
    line = _refused(capsys, tmp_path, address)
    assert "2.1.0" in line
    assert line.endswith("install the versions of its nodes")
    words = ["experiment", "cloning-tail", "--on", address, "--out", str(tmp_path / "out")]
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "2.1.0" in line
    assert line.endswith("install the versions of its nodes")
    assert not (tmp_path / "out").exists()
