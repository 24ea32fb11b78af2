"""Fixtures and hooks for all tests."""

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from tests.support.kubernetes_testbed import control_plane, testbed
from tests.support.ray_cluster import ray_cluster

__all__ = ["control_plane", "ray_cluster", "testbed", "traces"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Background jobs of a shell inherit it, and processes of tests would ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines, because the machine may be busy. The examples are the same in every run, because a
# change must not fail by examples that are new; `--hypothesis-profile=default` draws new ones.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

MEMORY_FILES = Path("/dev/shm")  # a file system in memory on Linux
MIN_FREE_BYTES = 4 << 30


def _keep_files_in_memory() -> None:
    """Put temporary files on a file system in memory: databases sync them thousands of times.

    `TMPDIR` chooses another folder. Containers often limit this one to 64 MiB, or forbid programs.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY_FILES, os.W_OK):
        return
    no_programs = os.statvfs(MEMORY_FILES).f_flag & os.ST_NOEXEC
    if not no_programs and shutil.disk_usage(MEMORY_FILES).free >= MIN_FREE_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY_FILES)


_keep_files_in_memory()

RERUN_MARKERS = ("processes", "browser", "postgres", "ray", "train", "kubernetes")
"""Markers of tests that drive real processes: they are rerun once after a failure."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files of long tests first; rerun failed tests of real processes once."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)
    if config.option.usepdb or not config.pluginmanager.hasplugin("rerunfailures"):
        return  # a debugger needs the first failure
    for item in items:
        if any(item.get_closest_marker(name) for name in RERUN_MARKERS):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, which takes 0.1 s over all of them."""
    gc.collect()
    gc.freeze()


def _restart_timeout(item: pytest.Item) -> None:
    """Restart the timeout of a test, which pytest-timeout cancels at the first failure."""
    settings = pytest_timeout._get_item_settings(item)  # there is no public function
    if settings.timeout and not item.config.option.usepdb:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Limit a rerun as the first run."""
    if getattr(item, "execution_count", 1) > 1:
        _restart_timeout(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Limit the teardown after a failure too."""
    _restart_timeout(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures of tests that were rerun, so that races get fixed."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"rerun: {report.nodeid} ({report.when})")
        terminalreporter.line(report.longreprtext)


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of the shared trace files; skips the test if it is missing."""
    default = Path(__file__).parents[2] / "shared" / "traces"
    folder = Path(os.environ.get("SHADOWPRICE_TRACES", default))
    if not folder.is_dir():
        pytest.skip(f"no trace files at {folder}; set SHADOWPRICE_TRACES to their folder")
    return folder
