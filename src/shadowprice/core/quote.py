"""What a policy answers when it is asked about a job that has not been submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shadowprice.core.events import Commit, Decision, Place, Promise, Queue, Reject
from shadowprice.core.refusal import Refusal


class Answer(Enum):
    """What would become of a job."""

    ADMITTED = "admitted"
    """It would be given a plan, or a placement, at once."""
    QUEUED = "queued"
    """It would be taken in without a promise of when it runs."""
    REFUSED = "refused"
    """It would be refused."""


@dataclass(frozen=True, slots=True)
class Quote:
    """What would be decided about a job if it arrived now, as the next one.

    Parameters
    ----------
    job : str
        The job.
    slot : int
        First slot that could still be decided.
    answer : Answer
        What would become of it.
    completion : int or None
        Slot in which it is promised to complete; of a refused job, that of the best plan found.
        None where nothing is promised.
    utility, price : float or None
        What that completion is worth, and what is asked for it; None where nothing is priced.
    displaced : tuple of str
        Jobs that would lose the promise they were given, in the order of their arrival.
    refusal : Refusal or None
        Why it would be refused, where that was asked for.
    message : str
        Anything else worth saying, such as when a batch is decided.
    """

    job: str
    slot: int
    answer: Answer
    completion: int | None = None
    utility: float | None = None
    price: float | None = None
    displaced: tuple[str, ...] = ()
    refusal: Refusal | None = None
    message: str = ""

    @property
    def admitted(self) -> bool:
        """Whether it would be taken in, with a promise or without."""
        return self.answer is not Answer.REFUSED

    @classmethod
    def of(cls, decision: Decision, slot: int) -> Quote:
        """Return the quote that comes true with a decision on an arriving job.

        Parameters
        ----------
        decision : Commit, Promise, Place, Queue or Reject
            What would be decided.
        slot : int
            First slot that could still be decided.

        Raises
        ------
        TypeError
            If the decision is none on an arriving job.
        """
        match decision:
            case Commit(job, schedule, _, utility, cost):
                return cls(job, slot, Answer.ADMITTED, schedule.completion, utility, cost)
            case Promise(job, completion, _, _, utility, cost) if completion is not None:
                return cls(job, slot, Answer.ADMITTED, completion, utility, cost)
            case Place(job, _):
                return cls(job, slot, Answer.ADMITTED)
            case Queue(job, message):
                return cls(job, slot, Answer.QUEUED, message=message)
            case Reject(job, refusal):
                return cls(
                    job,
                    slot,
                    Answer.REFUSED,
                    refusal.completion,
                    refusal.value,
                    refusal.cost,
                    refusal=refusal,
                )
        raise TypeError(f"{decision.tag} is no answer to an arrival")
