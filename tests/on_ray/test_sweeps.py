"""Runs distributed over a Ray cluster have the same results, even if nodes are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.experiments.framework import (
    ExperimentSettings,
    cache_dir,
    find_experiment,
    grid,
    run_experiment,
)
from shadowprice.experiments.oasis import CLEARING, _measure_row
from shadowprice.experiments.spreading import (
    QUEUED_RUNS_PER_CORE,
    CachingBackend,
    RayBackend,
    RunBackend,
    SequentialBackend,
)
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def on_ray(ray_cluster: RayCluster) -> Iterator[RayBackend]:
    ray_cluster.restore()
    with RayBackend(ray_cluster.address) as spread:
        assert spread.cores == 3
        yield spread


def square(number: int, seconds: float, marks: str) -> int:
    """Print the node, and take some time."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    with Path(marks).open("a", encoding="ascii") as stream:
        stream.write(f"{number} {node}\n")
    time.sleep(seconds)
    return number * number


def test_results_are_those_of_a_run_in_turn(on_ray: RunBackend) -> None:
    cases = grid(case=["chunk", "bursty"], variant=[CLEARING], jobs=[8], seed=range(2))
    label, size = "{case}".format, {"servers": 6, "slots": 30}
    here = ExperimentSettings(spread=SequentialBackend()).table(_measure_row, cases, label, **size)
    settings = ExperimentSettings(spread=on_ray)
    there = settings.table(_measure_row, cases, label, **size)
    assert len(settings.times.runs) == len(cases)
    assert here.equals(there)
    assert here["utility"].n_unique() > 1


def test_a_node_killed_under_runs_costs_time_only(
    on_ray: RunBackend, ray_cluster: RayCluster, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    received: list[tuple[int, int]] = []

    def progress(done: int, total: int, _: str) -> None:
        received.append((done, total))
        if done == 2:
            ray_cluster.kill("two")

    settings = ExperimentSettings(spread=on_ray, progress=progress)
    result = settings.each(square, [(n, 1.0, str(marks)) for n in range(12)], lambda *_: "")
    assert result == [n * n for n in range(12)]
    # one progress bar, which never goes back
    assert received == [(done, 12) for done in range(1, 13)]
    ran = [line.split() for line in marks.read_text().splitlines()]
    assert len({node for _, node in ran}) == 2  # the killed node had started runs
    ray_cluster.restore()


def test_completed_work_is_not_repeated(on_ray: RayBackend, tmp_path: Path) -> None:
    marks, kept = tmp_path / "marks", tmp_path / "kept"
    cases = [(n, 0.1, str(marks)) for n in range(20)]

    cores: list[int] = []

    def stop(done: int, _total: int, _label: str) -> None:
        cores.append(on_ray.cores)  # Ray may count a node that was killed before for a while
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ExperimentSettings(spread=CachingBackend(on_ray, kept), progress=stop).each(
            square, cases, lambda *_: ""
        )
    assert len(list(kept.glob("*.pickle"))) == 3
    again = CachingBackend(on_ray, kept)
    result = ExperimentSettings(spread=again).each(square, cases, lambda *_: "")
    assert (again.skipped, result) == (3, [n * n for n in range(20)])
    # The runs that were under way may have ended all the same; no others did.
    assert 20 <= len(marks.read_text().splitlines()) <= 20 + QUEUED_RUNS_PER_CORE * max(cores)


def test_a_whole_experiment_is_byte_for_byte_that_of_one_machine_though_it_is_cut_off(
    on_ray: RunBackend, ray_cluster: RayCluster, tmp_path: Path
) -> None:
    chosen = find_experiment("oasis-fig6")
    here, there = tmp_path / "here", tmp_path / "there"
    run_experiment(chosen, here, ExperimentSettings(quick=True, seed=3))

    def lost_and_cut_off(done: int, total: int, _: str) -> None:
        assert total == 36
        if done == 4:
            ray_cluster.kill("two")
        if done == 12:
            raise KeyboardInterrupt

    try:
        first = ExperimentSettings(quick=True, seed=3, spread=on_ray, progress=lost_and_cut_off)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(chosen, there, first)
        assert not there.exists()
        assert len(list(cache_dir(there).glob("*.pickle"))) == 12
        again = ExperimentSettings(quick=True, seed=3, spread=on_ray)
        run_experiment(chosen, there, again)
    finally:
        ray_cluster.restore()
    files = {path.name for path in here.iterdir()}
    assert {"scales.csv", "oasis-fig6.png", "manifest.json"} <= files
    assert files == {path.name for path in there.iterdir()}
    for name in files - {"manifest.json"}:  # which contains durations
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    documents = [json.loads((one / "manifest.json").read_text()) for one in (here, there)]
    assert documents[0]["tables"] == documents[1]["tables"]
    assert not cache_dir(there).exists()


def test_an_error_of_a_run_is_that_of_a_run_in_turn(on_ray: RunBackend, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="NoneType"):
        ExperimentSettings(spread=on_ray).each(
            square, [(None, 0.0, str(tmp_path / "m"))], lambda *_: ""
        )


def test_files_that_others_may_write_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o777)
    (tmp_path / "kept").chmod(0o777)
    with pytest.raises(InputError, match="others may write there"):
        CachingBackend(SequentialBackend(), tmp_path / "kept")


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("ray://127.0.0.1:1", "no Ray answers at ray://127.0.0.1:1"),
        ("127.0.0.1:1", "no Ray answers at 127.0.0.1:1"),
        ("somewhere", "write ray, HOST:PORT or ray://HOST:PORT"),
    ],
)
def test_a_wrong_address_is_reported_in_a_line(
    on: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["experiment", "cloning-tail", "--on", on, "--out", str(tmp_path / "out")]
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "out").exists()
    assert "RAY_ADDRESS" not in os.environ


def test_a_cluster_that_is_gone_is_not_waited_for() -> None:
    code = "from shadowprice.experiments.spreading import RayBackend as on\n"
    code += "with on('ray') as spread: print(spread.cores > 0)"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as folder:  # sockets: a short path
        kept = Path(folder, "ray", "ray_current_cluster")
        kept.parent.mkdir()
        kept.write_text("127.0.0.1:1")
        words, environment["RAY_TMPDIR"] = [sys.executable, "-c", code], folder
        done = subprocess.run(
            words, env=environment, check=False, capture_output=True, text=True, timeout=100
        )
    assert done.stdout == "True\n", done.stderr
