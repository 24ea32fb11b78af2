"""What would have had a refused job admitted: changes of its entry in the job file, verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


def advised_outcomes(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how jobs of a run ended that there is advice on.

    Parameters
    ----------
    info : mapping
        As ``run.json`` tells it. Where the policy's first word is not its last, a job that ran for
        a while in what was left over, and was given up, was not admitted either.
    """
    final = info.get("capabilities", {}).get("answers_at_once", True)
    return ("refused",) if final else ("refused", "dropped")


@dataclass(frozen=True, slots=True)
class Advice:
    """One change of a job's entry in its file, with which it is admitted.

    Parameters
    ----------
    way : str
        ``value``, ``work``, ``size``, ``workers``, ``arrival`` or ``deadline``.
    key : str
        What to change, as a path in the job's entry: ``utility.value``, ``worker.memory``.
    before, after : str
        What stands there, and what is to stand there instead.
    change : str
        How much that is, for a person.
    refused : str
        The next smaller change, at most 1 % less, or one whole unit where it counts in units; with
        it the job is refused.
    completion : int or None
        Slot in which the changed job is promised to complete, where it is promised one.
    utility, price : float or None
        What that is worth, and what is asked for it.
    verified : str
        How it was verified: ``asked``, the policy was asked again at that moment; ``run``, the jobs
        were run again with the change.
    at_those_prices : str or None
        Where running again gave another number than asking at the prices of that moment: the
        latter, or ``nothing`` where no change would do at those prices.
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
    verified: str = "asked"
    at_those_prices: str | None = None

    def record(self) -> dict[str, Any]:
        """Return the advice as plain values, without what is unknown."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Hopeless:
    """One way of changing a job in which nothing has it admitted.

    Parameters
    ----------
    way, key : str
        As in `Advice`.
    up_to : str
        The largest change that was tried.
    tried : int
        How many changes were tried, spread over all of the range.
    """

    way: str
    key: str
    up_to: str
    tried: int

    def record(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Counsel:
    """All that can be advised about one refused job.

    Parameters
    ----------
    job : str
        The job.
    slot : int
        The slot of its arrival, in which the policy is asked again.
    held : str
        What every advice holds fixed.
    advice : sequence of Advice
        One for each way that has it admitted.
    hopeless : sequence of Hopeless
        Ways in which nothing does.
    left_out : sequence of str
        Keys that were not looked at, because every change asks for a run that is too long.
    """

    job: str
    slot: int
    held: str
    advice: Sequence[Advice]
    hopeless: Sequence[Hopeless] = ()
    left_out: Sequence[str] = ()

    def record(self) -> dict[str, Any]:
        """Return the counsel as plain values."""
        return {
            "job": self.job,
            "slot": self.slot,
            "held": self.held,
            "advice": [advice.record() for advice in self.advice],
            "hopeless": [way.record() for way in self.hopeless],
            "left_out": list(self.left_out),
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Counsel:
        """Return the counsel that `record` told."""
        return cls(
            record["job"],
            record["slot"],
            record["held"],
            [Advice(**one) for one in record["advice"]],
            [Hopeless(**one) for one in record["hopeless"]],
            record["left_out"],
        )
