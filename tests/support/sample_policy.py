"""The documentation's sample as one more folder of policies, found as any other is.

``python -m pytest -p tests.support.sample_policy -k first_server`` runs the tests of every policy
on it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import shadowprice.policies
from shadowprice.policies import registry

NAME: Final = "first_server"
SAMPLE: Final = Path(__file__).parents[2] / "examples" / "policy.py"


@contextmanager
def installed() -> Iterator[None]:
    """Have the sample where its text says that it is to be copied, as far as imports can tell."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / NAME).mkdir()
        shutil.copy(SAMPLE, Path(folder) / NAME / "__init__.py")
        shadowprice.policies.__path__.append(folder)
        registry.policies.cache_clear()
        try:
            yield
        finally:
            shadowprice.policies.__path__.remove(folder)
            registry.policies.cache_clear()
            sys.modules.pop(f"shadowprice.policies.{NAME}", None)


_STACK: Final = ExitStack()


def pytest_configure() -> None:
    """Install it before tests are collected: they ask for every policy then."""
    _STACK.enter_context(installed())


def pytest_unconfigure() -> None:
    """Take it away again."""
    _STACK.close()
