"""Errors that the author of a training script or of a job file has to correct."""

from __future__ import annotations


class TrainingError(Exception):
    """A training script requests something invalid, or can't go on from the state it finds."""
