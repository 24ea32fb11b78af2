"""In-memory copy of the durable state for readers on the event loop."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shadowprice.core.events import Resize, Start, Stop
from shadowprice.core.job_keys import qualified_name
from shadowprice.service.budgets.accounts import Account
from shadowprice.service.state.durable_state import ClusterState
from shadowprice.service.state.job_views import JobView


@dataclass(slots=True)
class ReadModel:
    """The state that readers see; the writer updates it on the event loop after every commit."""

    servers: ClusterState
    # By key. `put_job` and `remove_job` change `jobs`, with the indexes below.
    jobs: dict[str, JobView] = field(default_factory=dict)  # open jobs, in order of submission
    recent: OrderedDict[str, JobView] = field(default_factory=OrderedDict)  # closed, newest last
    # As in `DurableState`: the newest launch command of each job that should run.
    desired: Mapping[str, Start | Resize] = field(default_factory=dict)
    unacknowledged: Mapping[int, Start | Resize | Stop] = field(default_factory=dict)
    sequence: int = 0  # number of the last event in the journal
    accounts: Mapping[str | None, Account] = field(default_factory=dict)  # by tenant
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # of open jobs, by key
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    _keys_by_qualified_name: dict[str, str] = field(default_factory=dict)
    _keys_by_name: dict[str, dict[str, None]] = field(default_factory=dict)
    _keys_by_id: dict[int, str] = field(default_factory=dict)

    def put_job(self, view: JobView) -> None:
        """Add an open job, or replace its view."""
        if view.key not in self.jobs:
            self._keys_by_qualified_name[qualified_name(view.tenant, view.name)] = view.key
            self._keys_by_name.setdefault(view.name, {})[view.key] = None
            self._keys_by_id[view.id] = view.key
        self.jobs[view.key] = view

    def remove_job(self, key: str) -> None:
        """Remove a job that was closed; no effect if it isn't open."""
        view = self.jobs.pop(key, None)
        if view is None:
            return
        qualified = qualified_name(view.tenant, view.name)
        if self._keys_by_qualified_name.get(qualified) == key:  # a newer job may have the name
            del self._keys_by_qualified_name[qualified]
        keys = self._keys_by_name[view.name]
        del keys[key]
        if not keys:
            del self._keys_by_name[view.name]
        del self._keys_by_id[view.id]

    def cached_job(self, key: str) -> JobView | None:
        """Return an open or recently closed job; None if only the store has it."""
        return self.jobs.get(key) or self.recent.get(key)

    def job_with_qualified_name(self, qualified: str) -> JobView | None:
        """Return the open job of a qualified name, if any."""
        key = self._keys_by_qualified_name.get(qualified)
        return None if key is None else self.jobs[key]

    def jobs_with_name(self, name: str) -> list[JobView]:
        """Return the open jobs of all tenants that have a name."""
        return [self.jobs[key] for key in self._keys_by_name.get(name, ())]

    def job_with_id(self, number: int) -> JobView | None:
        """Return the open job with an id, if any."""
        key = self._keys_by_id.get(number)
        return None if key is None else self.jobs[key]
