"""Loads the training libraries once, so that no process of a test has to."""

from contextlib import suppress

from tests.train.scripts import vision

vision.prepare()

with suppress(ImportError):
    import lightning.pytorch
with suppress(ImportError):
    from transformers import Trainer

__all__ = ["Trainer", "lightning"]
