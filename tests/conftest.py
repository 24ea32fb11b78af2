"""Fixtures shared by all tests."""

import gc
import os
import signal
from pathlib import Path

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from tests.support.kubernetes_testbed import control_plane, testbed
from tests.support.ray_cluster import ray_cluster

__all__ = ["control_plane", "ray_cluster", "testbed", "traces"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As jobs in a shell's background inherit it; what tests start would never be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no fault of what is tested, and what new draws find must not decide whether a
# change passes: `--hypothesis-profile=default` draws them.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

AGAIN = ("processes", "browser", "postgres", "ray", "train", "kubernetes")
"""Markers of tests that drive real processes, whose machine may be busy with anything."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest; try tests of real processes once more, and show the first failure."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)
    if config.option.usepdb or not config.pluginmanager.hasplugin("rerunfailures"):
        return  # a debugger, and who looks for races, want the first failure
    for item in items:
        if any(item.get_closest_marker(name) for name in AGAIN):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """Set aside what was imported: a collector that goes through all of it takes 0.1 s."""
    gc.collect()
    gc.freeze()


def _limit_anew(item: pytest.Item) -> None:
    """Begin the limit of a test again: a failure takes pytest-timeout's off for good."""
    settings = pytest_timeout._get_item_settings(item)  # which nothing public tells
    if settings.timeout and not item.config.option.usepdb:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Limit a second try as the first was."""
    if getattr(item, "execution_count", 1) > 1:
        _limit_anew(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Limit what is taken down after a failure, too."""
    _limit_anew(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test had to be tried again: a race that is hidden is never mended."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"tried again: {report.nodeid} ({report.when})")
        terminalreporter.line(report.longreprtext)


@pytest.fixture(scope="session")
def traces() -> Path:
    """The shared trace files, or a skip that says how to have them."""
    default = Path(__file__).parents[2] / "shared" / "traces"
    folder = Path(os.environ.get("SHADOWPRICE_TRACES", default))
    if not folder.is_dir():
        pytest.skip(f"no trace files at {folder}; set SHADOWPRICE_TRACES to their folder")
    return folder
