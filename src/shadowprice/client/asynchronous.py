"""The asynchronous client: the same methods, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

from shadowprice.client import calls
from shadowprice.client.calls import Batch, Call, Json, Page
from shadowprice.client.errors import ServiceError
from shadowprice.client.servers import Address, find
from shadowprice.client.stream import Decoder, pauses
from shadowprice.client.transport import (
    QUIET,
    attempts,
    finished,
    httpx,
    passing,
    refusal,
    request,
    settings,
    unreachable,
)
from shadowprice.rest.comparison import ComparedJob, Comparison
from shadowprice.rest.jobs import (
    Event,
    Generation,
    Job,
    JobDetail,
    JobEvent,
    JobHistory,
    LogChunk,
    ProgressPoint,
    Quote,
    StoredEvent,
)
from shadowprice.rest.monitoring import PriceSlot, WhatIf
from shadowprice.rest.ops import ServiceStatus, Timespan
from shadowprice.rest.servers import Server
from shadowprice.rest.tenants import AccountEntry, Statement, Tenant
from shadowprice.rest.tokens import NewToken, Token

T = TypeVar("T")


class AsyncClient:
    """Speaks to a live service, as `Client` does, without blocking.

    Parameters
    ----------
    server : str, Address or None
        A name that ``shadowprice login`` kept, or an address; by default what
        ``SHADOWPRICE_SERVER`` says, then the server of the last login.
    token : str or None
        In place of the one that is kept, or that ``SHADOWPRICE_TOKEN`` says.
    retry : float
        Seconds for which a call is tried again while the service cannot be reached or another
        instance takes over; calls that must not be done twice are never repeated.

    Raises
    ------
    InputError
        If the server is not known.

    Notes
    -----
    Every method raises `ServiceError` if the service refuses, `UnreachableError` if there is none.
    """

    def __init__(
        self, server: str | Address | None = None, token: str | None = None, *, retry: float = 0.0
    ) -> None:
        found = server if isinstance(server, Address) else find(server)
        self.address = found if token is None else Address(found.url, token)
        self.retry = retry
        self._most: float | None = None
        self._http = httpx.AsyncClient(**settings(self.address))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    def hurry(self, seconds: float = 0.5) -> None:
        """Give calls so little time from now on, for those who would rather have no answer."""
        self._most = seconds

    async def send(self, call: Call[T]) -> T:
        """Do one call of `shadowprice.client.calls`."""
        failed: Exception | None = None
        for pause in attempts(call, self.retry):
            await asyncio.sleep(pause)
            try:
                return finished(await self._http.request(**request(call, self._most)), call)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failed = unreachable(self.address, error)
                failed.__cause__ = error
            except Exception as error:
                if not passing(error):
                    raise
                failed = error
        assert failed is not None  # an attempt was made
        raise failed

    # -------------------------------------------------------------- jobs

    async def submit(self, job: Json, *, wait: int = 0) -> Job:
        """Submit one job, as in a job file; the same name and content again is the same job."""
        return await self.send(calls.submit(job, wait))

    async def submit_many(self, jobs: Sequence[Json], *, wait: int = 0) -> Batch:
        """Submit at most 1,000 jobs, all accepted or none."""
        return await self.send(calls.submit_many(jobs, wait))

    async def job(self, name: str) -> JobDetail:
        """Return a job."""
        return await self.send(calls.job(name))

    async def jobs(self, *states: str, tenant: str | None = None) -> AsyncIterator[Job]:
        """Yield jobs, the newest first, page by page."""
        cursor: int | None = None
        while True:
            page = await self.send(calls.jobs(states, tenant, cursor))
            for entry in page.entries:
                yield entry
            if (cursor := page.next) is None:
                return

    async def page_of_jobs(
        self,
        *states: str,
        tenant: str | None = None,
        cursor: int | None = None,
        limit: int | None = None,
    ) -> Page[Job]:
        """Return one page of jobs."""
        return await self.send(calls.jobs(states, tenant, cursor, limit))

    async def cancel(self, name: str) -> Job:
        """Withdraw a job; what runs of it is stopped."""
        return await self.send(calls.cancel(name))

    async def revise(self, name: str, **changes: object) -> Job:
        """Change what is known of an open job: ``utility``, its work, or its ``deadline``."""
        return await self.send(calls.revise(name, changes))

    async def explain(self, name: str) -> JobHistory:
        """Return a job's story."""
        return await self.send(calls.explain(name))

    async def job_events(self, name: str) -> AsyncIterator[JobEvent]:
        """Yield what happened to a job, the newest first, page by page."""
        cursor: int | None = None
        while True:
            page = await self.send(calls.job_events(name, cursor, calls.PAGE))
            for entry in page.entries:
                yield entry
            if (cursor := page.next) is None:
                return

    async def generations(self, name: str, limit: int | None = None) -> tuple[Generation, ...]:
        """Return what ran of a job and where, the newest first."""
        return await self.send(calls.generations(name, limit))

    async def progress(self, name: str, limit: int | None = None) -> tuple[ProgressPoint, ...]:
        """Return what a job reported."""
        return await self.send(calls.progress(name, limit))

    async def logs(
        self,
        name: str,
        *,
        process: str | None = None,
        generation: int | None = None,
        start: int | None = None,
        most: int | None = None,
    ) -> LogChunk:
        """Return a piece of what one process of a job wrote, by default the last of worker-0."""
        return await self.send(calls.logs(name, process, generation, start, most))

    async def follow_logs(
        self, name: str, *, process: str = "worker-0", start: int | None = None
    ) -> AsyncIterator[LogChunk]:
        """Yield what a process writes, generation after generation, until the job is over.

        Parameters
        ----------
        name : str
            The job.
        process : str
            One of its processes.
        start : int or None
            First byte; None for the last lines of what is there.
        """
        generation: int | None = None
        while True:
            piece = await self._piece(name, process, generation, start)
            if piece is not None:
                generation, start = piece.generation, piece.end
                if piece.text:
                    yield piece
                    continue
            if piece is None or piece.complete:
                job = await self.job(name)
                if generation is not None and job.generation > generation:
                    following = await self._piece(name, process, generation + 1, 0)
                    if following is not None or job.generation > generation + 1:
                        generation, start = generation + 1, 0
                        continue
                elif not job.open:
                    return
            await asyncio.sleep(1.0)

    async def _piece(
        self, name: str, process: str, generation: int | None, start: int | None
    ) -> LogChunk | None:
        try:
            return await self.logs(name, process=process, generation=generation, start=start)
        except ServiceError as error:
            if error.code != "not-found":
                raise
            return None  # it has not begun to run, or had no such process

    async def wait(self, name: str, *, timeout: float | None = None) -> Job:
        """Return a job once it is over.

        Raises
        ------
        TimeoutError
            If it is still open after so many seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.1
        while (job := await self.job(name)).open:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"job {name!r} is still {job.state}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 2.0)
        return job

    async def quote(self, job: Json) -> Quote:
        """Return what would become of a job if it were submitted now; nothing is reserved."""
        return await self.send(calls.quote(job))

    # -------------------------------------------------------------- cluster

    async def prices(self, slots: int | None = None) -> tuple[PriceSlot, ...]:
        """Return prices by kind of server over slots to come."""
        return await self.send(calls.prices(slots))

    async def servers(self) -> tuple[Server, ...]:
        """Return servers, with what runs on them."""
        return await self.send(calls.servers())

    async def add_servers(self, server: Json) -> tuple[Server, ...]:
        """Add a server, or ``count`` equal ones, as in a cluster file."""
        return await self.send(calls.add_servers(server))

    async def drain(self, name: str) -> Server:
        """Give a server no more work; what runs there goes on to the end of its slot."""
        return await self.send(calls.change_server(name, {"drain": True}))

    async def uncordon(self, name: str) -> Server:
        """Let a drained server take work again."""
        return await self.send(calls.change_server(name, {"drain": False}))

    async def change_server(self, name: str, **changes: object) -> Server:
        """Change a server's ``capacity``, ``role`` or ``cost``."""
        return await self.send(calls.change_server(name, changes))

    async def remove_server(self, name: str) -> None:
        """Remove a server; what runs there is planned anew."""
        await self.send(calls.remove_server(name))

    async def tenants(self) -> tuple[Tenant, ...]:
        """Return tenants."""
        return await self.send(calls.tenants())

    async def put_tenant(
        self, name: str, share: Json | None = None, *, budget: Json | None = None
    ) -> Tenant:
        """Add a tenant, or give it another share or budget; None leaves one as it is."""
        return await self.send(calls.put_tenant(name, share, budget))

    async def remove_budget(self, name: str) -> Tenant:
        """Let a tenant spend without limit; what it holds expires."""
        return await self.send(calls.remove_budget(name))

    async def grant(self, name: str, points: float, *, note: str = "") -> Tenant:
        """Give a tenant points beyond its budget; done twice, it is twice."""
        return await self.send(calls.grant(name, points, note))

    async def statement(
        self,
        name: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        back: int | None = None,
        kinds: Sequence[str] = (),
        cursor: int | None = None,
        limit: int | None = None,
    ) -> Statement:
        """Return a tenant's statement, with one page of its entries.

        Parameters
        ----------
        name : str
            The tenant.
        since, until : datetime or None
            From when on, and before when; with a time zone.
        back : int or None
            In their place, one period: 0 the one that runs, 1 the one before.
        kinds : sequence of str
            Kinds of entries; empty for all.
        cursor, limit : int or None
            Where the page begins, and how long it is.
        """
        return await self.send(calls.statement(name, since, until, back, kinds, cursor, limit))

    async def entries(
        self,
        name: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        back: int | None = None,
        kinds: Sequence[str] = (),
    ) -> AsyncIterator[AccountEntry]:
        """Yield entries of a tenant's account, the newest first, page by page."""
        cursor: int | None = None
        while True:
            page = await self.send(calls.statement(name, since, until, back, kinds, cursor))
            for entry in page.entries:
                yield entry
            if (cursor := page.next) is None:
                return

    async def remove_tenant(self, name: str) -> None:
        """Remove a tenant without open jobs."""
        await self.send(calls.remove_tenant(name))

    # -------------------------------------------------------------- operating

    async def tokens(self) -> tuple[Token, ...]:
        """Return tokens, without what they are."""
        return await self.send(calls.tokens())

    async def create_token(
        self, tenant: str | None = None, *, expires: str | None = None, note: str = ""
    ) -> NewToken:
        """Hand out a token: a tenant's, or an operator's where no tenant is named."""
        return await self.send(calls.create_token(tenant, expires=expires, note=note))

    async def revoke_token(self, number: int) -> None:
        """Take a token back."""
        await self.send(calls.revoke_token(number))

    async def decisions(
        self, *, job: str | None = None, tenant: str | None = None
    ) -> AsyncIterator[StoredEvent]:
        """Yield what was decided, the newest first, page by page."""
        cursor: int | None = None
        while True:
            page = await self.send(calls.decisions(job, tenant, cursor))
            for entry in page.entries:
                yield entry
            if (cursor := page.next) is None:
                return

    async def ask_whatif(
        self,
        days: float | None = None,
        servers: Mapping[str, int] | None = None,
        policy: str | None = None,
        settings: Json | None = None,
    ) -> WhatIf:
        """Ask what the last days would have earned otherwise; answers at once.

        Parameters
        ----------
        days : float or None
            How far to look back.
        servers : mapping of str to int, optional
            Servers more, or fewer, by kind.
        policy : str or None
            Who decides, in place of the service's own.
        settings : mapping, optional
            That policy's parameters.
        """
        return await self.send(calls.ask_whatif(days, servers, policy, settings))

    async def whatif(self, run: int) -> WhatIf:
        """Return how far a what-if is, and what came of it."""
        return await self.send(calls.whatif(run))

    async def whatifs(self) -> tuple[WhatIf, ...]:
        """Return what-ifs, the newest first."""
        return await self.send(calls.whatifs())

    async def cancel_whatif(self, run: int) -> WhatIf:
        """End a what-if."""
        return await self.send(calls.cancel_whatif(run))

    async def comparison(self, days: float | None = None) -> Comparison:
        """Return what was decided beside what really ran, where the service only observes."""
        return await self.send(calls.comparison(days))

    async def compared_jobs(self) -> AsyncIterator[ComparedJob]:
        """Yield jobs with both of their histories, the newest first, page by page."""
        cursor: int | None = None
        while True:
            page = await self.send(calls.compared_jobs(cursor))
            for entry in page.entries:
                yield entry
            if (cursor := page.next) is None:
                return

    async def service(self) -> ServiceStatus:
        """Return what the service is: its version, policy, slots."""
        return await self.send(calls.service())

    async def timespan(self) -> Timespan:
        """Return the end of the timespan."""
        return await self.send(calls.timespan())

    async def change_timespan(self, until: str | None) -> Timespan:
        """Set or move the end of the timespan (``18:00``, ``6h``), or remove it with None."""
        return await self.send(calls.change_timespan(until))

    async def events(
        self, after: int | None = None, *, reconnect: bool = True
    ) -> AsyncIterator[Event]:
        """Yield what happens, for ever; nothing is missed where the connection breaks.

        Parameters
        ----------
        after : int or None
            Number to resume from; None for from now on.
        reconnect : bool
            Whether to connect again, and resume, when the stream ends.
        """
        decoder = Decoder(after)
        waits = pauses()
        met = False  # nobody waits for a service that was never there
        while True:
            try:
                query = {} if decoder.last is None else {"after": decoder.last}
                async with self._http.stream(
                    "GET",
                    "/v1/events",
                    params=query,
                    headers={"Accept": "text/event-stream"},
                    timeout=httpx.Timeout(10.0, read=QUIET),
                ) as response:
                    if not response.is_success:
                        await response.aread()
                        raise refusal(response)
                    met = True
                    async for line in response.aiter_lines():
                        for event in decoder.take(line):
                            waits = pauses()
                            yield event
            except httpx.HTTPError as error:
                if not (reconnect and met):
                    raise unreachable(self.address, error) from error
            except Exception as error:
                if not (reconnect and met and passing(error)):
                    raise
            if not reconnect:
                return
            decoder.broken()
            await asyncio.sleep(next(waits))
