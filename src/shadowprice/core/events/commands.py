"""What the engine tells its driver: what to run and stop, and what became of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from shadowprice.core.bag import TaskCopies
from shadowprice.core.events.decisions import Decision
from shadowprice.core.schedule import Placement


@dataclass(frozen=True, slots=True)
class Order:
    """What every command to run or stop something says; two are equal if they ask for the same.

    Parameters
    ----------
    id : int
        Its number among all commands of the engine; a driver acts on it at most once.
    generation : int
        Which placement of the job it speaks of, from 1 on; older ones are refused.
    after : tuple of int
        Commands not acknowledged yet that free what this one takes, of the same slot and given
        later among them: their end is waited for. Two resizes may name each other; each ends what
        it replaces before it waits.
    frees : tuple of str
        Servers that the job's generation before holds until its end is seen.
    """

    id: int = field(default=0, compare=False, kw_only=True)
    generation: int = field(default=0, compare=False, kw_only=True)
    after: tuple[int, ...] = field(default=(), compare=False, kw_only=True)
    frees: tuple[str, ...] = field(default=(), compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Run(Order):
    """What `Start` and `Resize` have in common: a new generation of a job.

    Parameters
    ----------
    slot : int
        The slot at whose beginning it is to run.
    job : str
        The job.
    placement : Placement
        Where, by row.
    servers : tuple of str
        The placement's servers by name.
    copies : tuple of TaskCopies
        Of a bag, the copies of its tasks that the plan in force began with.
    plan : int
        Which plan of the job it follows, from 1 on; 0 where it stands until told otherwise.
    """

    slot: int
    job: str
    placement: Placement
    servers: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    copies: tuple[TaskCopies, ...] = field(default=(), compare=False, kw_only=True)
    plan: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Start(Run):
    """Start, or resume, a job in this placement at the beginning of the slot."""

    tag: ClassVar[str] = "Start"


@dataclass(frozen=True, slots=True)
class Resize(Run):
    """Move a running job to this placement at the beginning of the slot."""

    tag: ClassVar[str] = "Resize"


@dataclass(frozen=True, slots=True)
class Stop(Order):
    """Stop a job at the beginning of the slot; ``finished`` tells whether it is complete."""

    tag: ClassVar[str] = "Stop"

    slot: int
    job: str
    finished: bool


@dataclass(frozen=True, slots=True)
class Displaced:
    """A job lost what it had been promised, and waits to be planned anew.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    job : str
        The job.
    reason : str
        What happened.
    """

    tag: ClassVar[str] = "Displaced"

    slot: int
    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision was checked and took effect; what drivers report to users."""

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
