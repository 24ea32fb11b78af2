"""Kernels are compiled in advance, together, outside of measurements, and optionally."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.order import stable_order
from shadowprice.kernels.stopwatch import Stopwatch, working_time
from tests.support.examples import example_count
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
compiled = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"
)
FIFO = textwrap.dedent(
    """
    import sys
    from numba.core import event
    from shadowprice.cli.main import main
    seen = []
    class Seen(event.Listener):
        def on_start(self, event):
            seen.append(event.data["dispatcher"].py_func.__module__)
        def on_end(self, event):
            pass
    event.register("numba:compile", Seen())
    status = main(["simulate", "-c", sys.argv[1], "-j", sys.argv[2], "-p", "fifo"])
    print("compiled", sum(name.startswith("shadowprice") for name in seen))
    sys.exit(status)
    """
)
CALLED = textwrap.dedent(
    """
    import sys
    from shadowprice.cli.main import main
    from shadowprice.kernels.jit import kernels
    from shadowprice.simulator.warm_up import warm_up
    def called():
        return {(name, str(one)) for name in kernels for one in kernels[name].signatures}
    for policy in sys.argv[1].split(","):
        warm_up(policy)
    warmed = called()
    status = main(sys.argv[2:])
    print(len(warmed))
    print(sorted(called() - warmed))
    sys.exit(status)
    """
)


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, "-B", *words],
        env=kept | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )


def files(folder: Path) -> tuple[str, str]:
    (folder / "c.yaml").write_text("slot: 20min\nservers: [{name: g, capacity: {gpu: 2}}]\n")
    (folder / "j.jsonl").write_text(
        '{"name": "a", "minibatches": 3, "minibatch_time": "20min", "worker": {"gpu": 1}, '
        '"utility": {"kind": "constant", "value": 1}}\n'
    )
    return str(folder / "c.yaml"), str(folder / "j.jsonl")


@compiled
def test_the_cache_folder_is_the_one_that_numba_uses(tmp_path: Path) -> None:
    show = (
        "import os; from shadowprice.kernels.jit import cache_folder; "
        "os.environ['NUMBA_CACHE_DIR'] = 'elsewhere'; print(cache_folder())"
    )
    cache = str(tmp_path / "cache")
    assert python("-c", show, NUMBA_CACHE_DIR=cache).stdout == f"{cache}\n"
    unusable = str(tmp_path / "file" / "cache")
    (tmp_path / "file").touch()
    assert unusable not in python("-c", show, NUMBA_CACHE_DIR=unusable).stdout


@pytest.mark.compiles
@compiled
def test_a_policy_that_was_warmed_compiles_nothing_more(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    warm = "from shadowprice.cli.main import main; import sys; sys.exit(main(['warm', 'fifo']))"
    first = python("-c", warm, NUMBA_CACHE_DIR=cache)
    assert first.returncode == 0, first.stderr
    assert first.stderr == f"compiling kernels, once only: they are kept in {cache}\n"
    assert re.match(r"compiled [1-9]\d* kernels in ", first.stdout)
    ran = python("-c", FIFO, *files(tmp_path), NUMBA_CACHE_DIR=cache)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("compiled 0\n")
    assert "compiling" not in ran.stderr
    again = python("-c", warm, NUMBA_CACHE_DIR=cache)
    assert again.stdout == f"nothing to compile: everything is kept in {cache}\n"


@pytest.mark.compiles
@compiled
def test_warm_compiles_all_that_the_comparison_of_the_readme_calls() -> None:
    # The signatures of calls are compared, which compiles nothing if the kernels are cached.
    policies = "rolling,oasis,fifo,drf"
    example = [*("-c", "examples/cluster.yaml"), *("-j", "examples/jobs.yaml")]
    more = ("--until", "20 slots", "-p", policies, "--bound")
    ran = python("-c", CALLED, policies, "compare", *example, *more)
    assert ran.returncode == 0, ran.stderr
    warmed, missing = ran.stdout.splitlines()[-2:]
    assert int(warmed) > 20
    assert missing == "[]"


@pytest.mark.compiles
@compiled
def test_a_failed_compilation_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import sys\nsys.exit('broken installation')\n")
    script = (
        "import sys\n"
        "from shadowprice.cli.main import main\n"
        f"sys.path.insert(0, {str(broken)!r})\n"
        "sys.exit(main(['warm', '--quiet', 'fifo']))"
    )
    failed = python("-c", script, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert failed.returncode != 0
    assert "failed to compile kernels of fifo: " in failed.stderr


@pytest.mark.compiles
@compiled
def test_an_interrupt_ends_the_compiling_at_once(tmp_path: Path) -> None:
    warm = (
        "import signal, sys\n"
        # A shell starts its background jobs with interrupts ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from shadowprice.cli.main import main\n"
        "sys.exit(main(['warm', 'oasis']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", warm],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("compiling kernels")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_LIMIT_SECONDS)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert not list(tmp_path.glob("warm-*"))


@pytest.mark.compiles
@compiled
def test_a_read_only_installation_runs(tmp_path: Path) -> None:
    package = ROOT / "src" / "shadowprice"
    for source in package.rglob("*"):
        if source.is_file() and source.parent.name != "__pycache__":
            copy = tmp_path / "read-only" / source.relative_to(package.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(source)
            # No user can create a folder with this name.
            (copy.parent / "__pycache__").touch()
    # Symbolic links to the sources are followed; kernels are searched beside their targets.
    for copy in (tmp_path / "read-only" / "shadowprice" / "kernels").rglob("*.py"):
        text = copy.read_text()
        copy.unlink()
        copy.write_text(text)
    ran = python(
        *("-c", FIFO, *files(tmp_path)),
        PYTHONPATH=str(tmp_path / "read-only"),
        HOME="/dev/null",
        XDG_CACHE_HOME="/dev/null/cache",
    )
    assert ran.returncode == 0, ran.stderr
    assert "total utility" in ran.stdout
    assert "no cache folder is writable" in ran.stderr
    assert "NUMBA_CACHE_DIR" in ran.stderr


def test_preparation_counts_once_and_stops_the_clock() -> None:
    watch = Stopwatch()
    watch.start()
    watch.start()
    watch.stop()
    assert watch.seconds == 0.0
    watch.stop()
    once = watch.seconds
    assert once > 0.0
    watch.start()
    watch.stop()
    assert watch.seconds > once
    assert working_time() <= working_time()


@settings(deadline=None, derandomize=True, max_examples=example_count(200))
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5, -1.0, float("inf"), float("nan")])))
def test_the_order_is_numpy_s_stable_one(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()
    whole = np.array([int(v) for v in values if abs(v) < 9], dtype=np.int64)
    assert stable_order(whole).tolist() == np.argsort(whole, kind="stable").tolist()
