"""The program that the user called, for hints."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

PROGRAM: Final = "shadowprice"

called_program: Final = ContextVar("called_program", default=PROGRAM)
"""This program, or the plugin of kubectl that runs its commands."""
