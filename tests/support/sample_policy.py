"""The documentation's sample as a policy of an installed distribution, found by its entry point.

``python -m pytest -p tests.support.sample_policy -k first_fit`` runs the tests of every policy on
it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from shadowprice.extensions import POLICIES, installed_extensions
from shadowprice.policies.registry import extension_info

NAME: Final = "first_fit"
SAMPLE: Final = Path(__file__).parents[2] / "examples" / "policy.py"
_MODULE: Final = "sample_of_the_documentation"


@contextmanager
def installed() -> Iterator[None]:
    """Install a distribution whose one module is the sample."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SAMPLE, Path(folder) / f"{_MODULE}.py")
        info = Path(folder) / f"{_MODULE}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {_MODULE}\nVersion: 1.0\n", "utf-8"
        )
        points = f"[{POLICIES}]\n{NAME} = {_MODULE}:FirstFit\n"
        (info / "entry_points.txt").write_text(points, "utf-8")
        sys.path.insert(0, folder)
        installed_extensions.cache_clear()
        try:
            yield
        finally:
            sys.path.remove(folder)
            sys.modules.pop(_MODULE, None)
            installed_extensions.cache_clear()
            extension_info.cache_clear()


_STACK: Final = ExitStack()


def pytest_configure() -> None:
    """Install it before tests are collected: they list the policies then."""
    _STACK.enter_context(installed())


def pytest_unconfigure() -> None:
    """Uninstall it."""
    _STACK.close()
