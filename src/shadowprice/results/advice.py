"""Verified changes of a refused job's entry in the job file that get the job admitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


def outcomes_with_advice(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the job outcomes of a run that qualify for advice.

    ``info`` is the content of ``run.json``. If the policy doesn't decide at once, a dropped job was
    never admitted either: it only ran on spare capacity.
    """
    final = info.get("capabilities", {}).get("answers_at_once", True)
    return ("refused",) if final else ("refused", "dropped")


@dataclass(frozen=True, slots=True)
class Advice:
    """One change of a job's entry in its file that gets the job admitted.

    Attributes
    ----------
    way : str
        ``value``, ``work``, ``time``, ``size``, ``workers``, ``arrival`` or ``deadline``.
    key : str
        Path of the changed key in the job's entry: ``utility.value``, ``worker.memory``.
    before, after : str
        Current and new value.
    change : str
        Size of the change, formatted.
    refused : str
        The next smaller change, with which the job is still refused: at most 1 % smaller, or by one
        unit for integers.
    completion : int or None
        Promised completion slot of the changed job; None without a promise.
    utility, price : float or None
        Utility and price of the changed job.
    verified : str
        ``quoted`` if the policy quoted the changed job at that moment, ``run`` if the jobs were run
        again with the change.
    at_those_prices : str or None
        Result of the quote if it differs from that of the repeated run; ``nothing`` if no change
        gets the job admitted at the quoted prices.
    """

    way: str
    key: str
    before: str
    after: str
    change: str
    refused: str
    completion: int | None = None
    utility: float | None = None
    price: float | None = None
    verified: str = "quoted"
    at_those_prices: str | None = None

    def record(self) -> dict[str, Any]:
        """Return the advice as plain values, without unknown ones."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class IneffectiveChange:
    """One way of changing a job that doesn't get it admitted.

    Attributes
    ----------
    way, key : str
        As in `Advice`.
    up_to : str
        The largest change that was tried.
    tried : int
        Number of tried changes, spread over the whole range.
    """

    way: str
    key: str
    up_to: str
    tried: int

    def record(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class JobAdvice:
    """All advice on one refused job.

    Attributes
    ----------
    job : str
        Name of the job.
    slot : int
        Arrival slot of the job, in which the policy is queried again.
    held : str
        Description of the circumstances that every advice assumes unchanged.
    advice : sequence of Advice
        One change for each way that gets the job admitted.
    hopeless : sequence of IneffectiveChange
        Ways that don't get it admitted.
    left_out : sequence of str
        Keys that weren't tried, because each change needs a run that takes too long.
    """

    job: str
    slot: int
    held: str
    advice: Sequence[Advice]
    hopeless: Sequence[IneffectiveChange] = ()
    left_out: Sequence[str] = ()

    def record(self) -> dict[str, Any]:
        """Return the advice as plain values."""
        return {
            "job": self.job,
            "slot": self.slot,
            "held": self.held,
            "advice": [advice.record() for advice in self.advice],
            "hopeless": [way.record() for way in self.hopeless],
            "left_out": list(self.left_out),
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> JobAdvice:
        """Build the advice from the result of `record`."""
        return cls(
            record["job"],
            record["slot"],
            record["held"],
            [Advice(**item) for item in record["advice"]],
            [IneffectiveChange(**item) for item in record["hopeless"]],
            record["left_out"],
        )
