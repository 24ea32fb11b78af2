"""In-memory copy of the durable state for readers on the event loop."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shadowprice.core.events import Resize, Start, Stop
from shadowprice.service.budgets.accounts import Account
from shadowprice.service.state.commit_result import ClusterState
from shadowprice.service.state.job_views import JobView


@dataclass(slots=True)
class ReadModel:
    """The state that readers see; the writer updates it on the event loop after every commit.

    Parameters
    ----------
    jobs : dict of str to JobView
        Open jobs, in order of submission.
    recent : ordered dict of str to JobView
        Recently closed jobs.
    running : mapping of str to Start or Resize
        Desired state: the newest command of every job that should run.
    unacknowledged : mapping of int to Order
        Commands that are not acknowledged yet, by number.
    servers : ClusterState
        The cluster, and the current slot.
    sequence : int
        Number of the last journaled event.
    accounts : mapping of str to Account
        Accounts of the tenants with a budget.
    specs : dict of str to mapping
        Specifications of open jobs, with their revisions.
    prices : mapping of (str, str) to float
        Prices of the coming slot when the running one began, by kind of server and resource.
    """

    jobs: dict[str, JobView]
    recent: OrderedDict[str, JobView]
    running: Mapping[str, Start | Resize]
    unacknowledged: Mapping[int, Start | Resize | Stop]
    servers: ClusterState
    sequence: int
    accounts: Mapping[str, Account] = field(default_factory=dict)
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)
