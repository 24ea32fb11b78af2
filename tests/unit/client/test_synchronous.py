"""The synchronous client is generated from the asynchronous one."""

from __future__ import annotations

import pytest
from tools.synchronous_client import SOURCE, TARGET, synchronous


def test_it_is_what_the_tool_writes() -> None:
    assert synchronous(SOURCE.read_text("utf-8")) == TARGET.read_text("utf-8"), (
        "change asynchronous.py, then run: python tools/synchronous_client.py"
    )


def test_features_without_a_counterpart_are_refused() -> None:
    text = SOURCE.read_text("utf-8")
    with pytest.raises(ValueError, match="'async' has no synchronous counterpart"):
        synchronous(text + "\n\nLATER = [one async for one in ()]\nasync\n")
    with pytest.raises(ValueError, match="doesn't contain"):
        synchronous(text.replace("import asyncio", "import asyncio as waiting"))
