"""Commands and notifications from the engine to its driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from shadowprice.core.bag import TaskCopies
from shadowprice.core.events.decisions import Decision
from shadowprice.core.schedule import Placement


@dataclass(frozen=True, slots=True)
class NumberedCommand:
    """Common fields of commands, which comparisons ignore.

    Parameters
    ----------
    id : int
        Number among all commands of the engine. A driver executes it at most once.
    generation : int
        The job's generation, starting from 1. It fences commands: older generations are refused.
    after : tuple of int
        Commands that must be acknowledged first, because they free this command's servers. They
        may be later commands of the same slot. Two resizes may name each other: each stops its
        previous generation before it waits.
    frees : tuple of str
        Servers that the job's previous generation occupies until its end is observed.
    """

    id: int = field(default=0, compare=False, kw_only=True)
    generation: int = field(default=0, compare=False, kw_only=True)
    after: tuple[int, ...] = field(default=(), compare=False, kw_only=True)
    frees: tuple[str, ...] = field(default=(), compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Run(NumberedCommand):
    """Common fields of `Start` and `Resize`, which run a new generation of a job from a slot on.

    ``servers`` are the names of the servers whose rows `Placement` has. ``copies`` are those of a
    bag at the start of the current plan. ``plan`` is the number of the job's plan, starting from 1;
    0 if the job is placed without a plan.
    """

    slot: int
    job: str
    placement: Placement
    servers: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    copies: tuple[TaskCopies, ...] = field(default=(), compare=False, kw_only=True)
    plan: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Start(Run):
    """Start or resume a job in this placement at the start of the slot."""

    tag: ClassVar[str] = "Start"


@dataclass(frozen=True, slots=True)
class Resize(Run):
    """Move a running job to this placement at the start of the slot."""

    tag: ClassVar[str] = "Resize"


@dataclass(frozen=True, slots=True)
class Stop(NumberedCommand):
    """Stop a job at the start of the slot; ``finished`` says whether it is complete."""

    tag: ClassVar[str] = "Stop"

    slot: int
    job: str
    finished: bool


@dataclass(frozen=True, slots=True)
class Displaced:
    """A job lost its plan or placement, and waits for a new one."""

    tag: ClassVar[str] = "Displaced"

    slot: int
    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision was validated and took effect; drivers report it to users."""

    tag: ClassVar[str] = "Decided"

    slot: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Completed:
    """A job completed in a slot and earned its utility."""

    tag: ClassVar[str] = "Completed"

    slot: int
    job: str
    utility: float = field(default=0.0)


Command = Start | Resize | Stop | Displaced | Decided | Completed
