"""Defaults that commands, Python functions and the service share."""

from typing import Final

DEFAULT_POLICY: Final = "rolling"  # policy of simulations and of the service if none is named
