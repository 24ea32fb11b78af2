"""Settings of Python's garbage collector for runs that hold many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (50_000, 20, 50)
"""Thresholds of the three generations; Python's default is (700, 10, 10).

Imported modules and the jobs of a run live until the end. With the default, the collector scans
them again and again: a tenth of a small run, and seconds at a time with a million jobs.
"""


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect rarely within a block; a program that collects more rarely keeps its thresholds."""
    before = gc.get_threshold()
    # A threshold of 0 means that the program has switched automatic collections off.
    chosen = [max(old, new) if old else 0 for old, new in zip(before, THRESHOLDS, strict=True)]
    gc.set_threshold(*chosen)
    try:
        yield
    finally:
        gc.set_threshold(*before)
