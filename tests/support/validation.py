"""Fixture for test packages whose engines check the invariants of their state."""

from collections.abc import Iterator

import pytest

from shadowprice.engine import Engine


@pytest.fixture(scope="module", autouse=True)
def validated_state() -> Iterator[None]:
    """Check the invariants of every engine's state after each event."""
    Engine.validates_state = True
    yield
    Engine.validates_state = False
