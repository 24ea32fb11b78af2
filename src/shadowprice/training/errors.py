"""What goes wrong in training and is the script's or the job file's to mend."""

from __future__ import annotations


class TrainingError(Exception):
    """A training script asks for what cannot be, or finds what it cannot go on from."""
