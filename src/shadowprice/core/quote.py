"""Quotes: a policy's decision on a job that hasn't been submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shadowprice.core.events import Commit, Decision, Place, Promise, Queue, Reject
from shadowprice.core.refusal import Refusal


class QuoteAnswer(Enum):
    """The outcome that a quote predicts."""

    ADMITTED = "admitted"  # the job would get a plan, a promise or a placement at once
    QUEUED = "queued"  # the job would wait, without a promise
    REFUSED = "refused"  # the job would be refused


@dataclass(frozen=True, slots=True)
class Quote:
    """The decision on a job if it were the next to arrive; ``slot`` is the first undecided slot."""

    job: str
    slot: int
    answer: QuoteAnswer
    completion: int | None = None  # promised slot, or that of a refused job's best plan
    utility: float | None = None  # of that completion; None if nothing is priced
    price: float | None = None
    displaced: tuple[str, ...] = ()  # jobs that would lose their promise, in order of arrival
    refusal: Refusal | None = None  # if requested
    message: str = ""  # further information, such as when a batch is decided
    expected: int | None = None  # completion slot of an admitted job in its plan

    @property
    def admitted(self) -> bool:
        """Whether the job would be admitted or queued."""
        return self.answer is not QuoteAnswer.REFUSED

    @classmethod
    def of(cls, decision: Decision, slot: int) -> Quote:
        """Return the quote for a decision on an arriving job; raise TypeError for other ones."""
        match decision:
            case Commit(job, schedule, _, utility, cost):
                end = schedule.completion
                return cls(job, slot, QuoteAnswer.ADMITTED, end, utility, cost, expected=end)
            case Promise(job, end, expected, _, utility, cost) if end is not None:
                return cls(job, slot, QuoteAnswer.ADMITTED, end, utility, cost, expected=expected)
            case Place(job, _):
                return cls(job, slot, QuoteAnswer.ADMITTED)
            case Queue(job, message):
                return cls(job, slot, QuoteAnswer.QUEUED, message=message)
            case Reject(job, refusal):
                numbers = refusal.completion, refusal.value, refusal.cost
                return cls(job, slot, QuoteAnswer.REFUSED, *numbers, refusal=refusal)
        raise TypeError(f"{decision.tag} is not an answer to an arrival")
