"""What every executor is made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Election(Protocol):
    """By which one of several services gives orders at a time."""

    @property
    def name(self) -> str:
        """Which election it is: the same for all who stand for it."""

    @property
    def number(self) -> int:
        """Number of this leader, higher than those of all before it; 0 before it is elected."""

    def holds(self) -> bool:
        """Whether nobody else can lead at this moment."""


def unheeded(what: str) -> None:
    """Take in that something failed where nobody counts it."""
    del what


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """What every executor is made with.

    Parameters
    ----------
    directory : str
        Absolute path of a directory of the executor's own, mode 700: its memory.
    namespace : str
        Tells the jobs of one service from those of another where they share a place.
    address : str
        Of what runs the jobs, where that is elsewhere (``ray://...``, a kubeconfig).
    settings : mapping of str to str
        What only this executor understands.
    observing : bool
        Whether it is only to look on: then it takes no lock that others see, and writes nothing.
    election : Election or None
        By which its service is one of several that gives orders; None where nobody is elected.
    failed : callable
        Told each time that something failed in it which nobody foresaw, in a word: who counts that.
    """

    directory: str
    namespace: str = "shadowprice"
    address: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    observing: bool = False
    election: Election | None = None
    failed: Callable[[str], None] = unheeded
