"""What readers see of the truth, without asking whoever owns it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shadowprice.core.events import Resize, Start, Stop
from shadowprice.service.budgets.accounts import Account
from shadowprice.service.truth.outcome import Servers
from shadowprice.service.truth.views import JobView


@dataclass(slots=True)
class Published:
    """What readers see: replaced entry by entry on the loop, after every commit.

    Parameters
    ----------
    jobs : dict of str to JobView
        Open jobs, in order of submission.
    recent : ordered dict of str to JobView
        Jobs that were closed not long ago.
    running : mapping of str to Start or Resize
        The newest order of every job that is to run.
    unacknowledged : mapping of int to Order
        Orders not acknowledged yet.
    servers : Servers
        What the servers are.
    sequence : int
        Number of the last event.
    accounts : mapping of str to Account
        What tenants with a budget hold.
    specs : dict of str to mapping
        What was submitted of open jobs, as it was revised last.
    """

    jobs: dict[str, JobView]
    recent: OrderedDict[str, JobView]
    running: Mapping[str, Start | Resize]
    unacknowledged: Mapping[int, Start | Resize | Stop]
    servers: Servers
    sequence: int
    accounts: Mapping[str, Account] = field(default_factory=dict)
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
