"""Errors that the author of a training script or of a job file has to correct, and messages."""

from __future__ import annotations


class TrainingError(Exception):
    """A training script requests something invalid, or can't continue from the state it finds."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
