"""The service as its components see it, and a query that several components need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from shadowprice.core.cluster import Cluster
from shadowprice.inputs.families import Families
from shadowprice.service.execution.controller import ExecutionController
from shadowprice.service.metrics import Metrics
from shadowprice.service.settings import ServiceSettings
from shadowprice.service.state import store_queries
from shadowprice.service.state.job_views import JobView
from shadowprice.service.uploads import UploadStore
from shadowprice.service.writer import Writer

P = ParamSpec("P")
Result = TypeVar("Result")


class ServiceHost(Protocol):
    """A running service, without the components that import this module."""

    settings: ServiceSettings
    metrics: Metrics
    cluster: Cluster  # of the cluster file, without budgets
    families: Families
    key: bytes  # secret of the store, empty before the start
    execution: ExecutionController | None  # None if no jobs run
    upload_store: UploadStore | None  # None if jobs get no files from their submitters
    stopping: bool

    def require_writer(self) -> Writer:
        """Return the writer; raise `ProblemError` if this instance doesn't write."""

    async def read(
        self,
        query: Callable[Concatenate[Connection, P], Result],
        *args: P.args,
        **options: P.kwargs,
    ) -> Result:
        """Run a query of the store in a reader thread."""

    def reserve(self, tenant: str | None, jobs: int, memory: int) -> AbstractContextManager[None]:
        """Reserve a tenant's open jobs and their memory during a block."""

    def fail(self) -> None:
        """End the process with a failure status."""


async def find_view(service: ServiceHost, key: str) -> JobView | None:
    """Return the job with a key, open or closed; None if it is unknown or purged."""
    view = service.require_writer().published.cached_job(key)
    if view is None:
        stored = await service.read(store_queries.job, key)
        view = None if stored is None else stored[0]
    return view
