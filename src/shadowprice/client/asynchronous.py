"""The asynchronous client: the same methods, awaited."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

from shadowprice.client import calls
from shadowprice.client.calls import ApiCall, Json, Page, SubmitResult
from shadowprice.client.endpoints import Endpoint, normalize_token, resolve_endpoint
from shadowprice.client.errors import ServiceError
from shadowprice.client.stream import SseDecoder, reconnect_delays
from shadowprice.client.transport import (
    STREAM_READ_TIMEOUT_SECONDS,
    aread_pieces,
    check_stream,
    httpx,
    httpx_options,
    is_retryable,
    may_have_arrived,
    parse_response,
    request,
    retry_delays,
    to_service_error,
    to_unreachable_error,
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
from shadowprice.rest.uploads import Upload
from shadowprice.uploads.packing import Archive

T = TypeVar("T")


class AsyncClient:
    """Sends requests to a live service, as `Client` does, without blocking.

    ``server`` is a name from ``shadowprice login``, or a URL. The default is
    ``SHADOWPRICE_SERVER``, then the server of the last login. ``token`` replaces the stored token
    and ``SHADOWPRICE_TOKEN``.

    A call is retried for ``retry`` seconds while the service is unreachable or another instance
    takes over. Calls that aren't idempotent are never retried.

    Every method raises `ServiceError` if the service refuses the request, and
    `ServiceUnreachableError` if it doesn't respond. An unknown server is an `InputError`.
    """

    def __init__(
        self, server: str | Endpoint | None = None, token: str | None = None, *, retry: float = 0.0
    ) -> None:
        address = server if isinstance(server, Endpoint) else resolve_endpoint(server)
        if token is not None:
            address = Endpoint(address.url, normalize_token(token, "token"))
        self.address = address
        self.retry = retry
        self._most: float | None = None
        self._http = httpx.AsyncClient(**httpx_options(self.address))

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
        """Set a short timeout for all further calls, in seconds."""
        self._most = seconds

    async def send(self, call: ApiCall[T]) -> T:
        """Send a call of `shadowprice.client.calls`, with retries."""
        last_error: Exception | None = None
        unanswered: Exception | None = None  # of a submission that may have taken effect
        for pause in retry_delays(call, self.retry):
            await asyncio.sleep(pause)
            try:
                arguments = request(call, self._most)
                if call.archive is not None:
                    arguments["content"] = aread_pieces(call)
                return parse_response(await self._http.request(**arguments), call)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                last_error = to_unreachable_error(self.address, error, call)
                last_error.__cause__ = error
                if call.is_submission and may_have_arrived(error):
                    unanswered = last_error
            except Exception as error:
                if not is_retryable(error):
                    raise
                last_error = error
        assert last_error is not None  # an attempt was made
        raise unanswered or last_error

    async def _entries(self, call: Callable[[int | None], ApiCall[Page[T]]]) -> AsyncIterator[T]:
        """Yield the entries of all pages; ``call`` returns the request of the page of a cursor."""
        cursor: int | None = None
        while True:
            page = await self.send(call(cursor))
            for entry in page.entries:
                yield entry
            if (cursor := page.next) is None:
                return

    # -------------------------------------------------------------- jobs

    async def submit(self, job: Json, *, wait: int = 0) -> Job:
        """Submit one job, as in a job file.

        The name and content of an open or finished job return that job.
        """
        return await self.send(calls.submit(job, wait))

    async def submit_many(self, jobs: Sequence[Json], *, wait: int = 0) -> SubmitResult:
        """Submit at most 1,000 jobs, all or none."""
        return await self.send(calls.submit_many(jobs, wait))

    async def upload(
        self,
        archive: Archive,
        *,
        tenant: str | None = None,
        sent: Callable[[int], None] | None = None,
    ) -> Upload:
        """Store an archive of files for jobs, unless it is there.

        `shadowprice.uploads.packing.temporary_archive` yields the archive; jobs name its ``digest``
        in ``run.upload``. Operators give the ``tenant`` of the jobs. ``sent`` receives the number
        of bytes sent so far.
        """
        try:
            return await self.send(calls.upload(archive.digest, tenant))
        except ServiceError as error:
            if error.code != "not-found":
                raise
        return await self.send(calls.send_upload(archive, tenant, sent))

    async def job(self, name: str) -> JobDetail:
        """Return a job with its submission."""
        return await self.send(calls.job(name))

    def jobs(self, *states: str, tenant: str | None = None, search: str = "") -> AsyncIterator[Job]:
        """Yield jobs, newest first; ``search`` is a part of their names."""
        return self._entries(lambda cursor: calls.jobs(states, tenant, cursor, search=search))

    async def page_of_jobs(
        self,
        *states: str,
        tenant: str | None = None,
        cursor: int | None = None,
        limit: int | None = None,
        search: str = "",
    ) -> Page[Job]:
        """Return one page of jobs. A page of a search may be empty and not the last one."""
        return await self.send(calls.jobs(states, tenant, cursor, limit, search))

    async def cancel(self, name: str) -> Job:
        """Cancel a job and stop its processes."""
        return await self.send(calls.cancel(name))

    async def resubmit(self, name: str, new_name: str, *, cancel: bool = False) -> Job:
        """Submit a job again under a new name, from its beginning.

        ``cancel`` cancels an open job in the same operation; without it, an open job is an error.
        """
        return await self.send(calls.resubmit(name, new_name, cancel=cancel))

    async def revise(self, name: str, /, *, dry_run: bool = False, **changes: object) -> Job:
        """Revise an open job: its ``utility``, its work or its ``deadline``.

        With ``dry_run``, nothing changes: the result is the job as it would be, with its price.
        """
        return await self.send(calls.revise(name, changes, dry_run=dry_run))

    async def explain(self, name: str, *, outlook: bool = False) -> JobHistory:
        """Return a job's history, which explains the decisions on it.

        With ``outlook``, it also says when a job that doesn't run yet starts, what one that waits
        or was refused lacks now, and which changes would get it admitted. The service takes up to a
        second for that.
        """
        return await self.send(calls.explain(name, outlook=outlook))

    def job_events(self, name: str) -> AsyncIterator[JobEvent]:
        """Yield a job's events, newest first."""
        return self._entries(lambda cursor: calls.job_events(name, cursor, calls.PAGE))

    async def generations(self, name: str, limit: int | None = None) -> tuple[Generation, ...]:
        """Return a job's generations with their placements, newest first."""
        return await self.send(calls.generations(name, limit))

    async def progress(self, name: str, limit: int | None = None) -> tuple[ProgressPoint, ...]:
        """Return a job's progress reports in order, evenly sampled above ``limit``."""
        return await self.send(calls.progress(name, limit))

    async def logs(
        self,
        name: str,
        *,
        process: str | None = None,
        generation: int | None = None,
        start: int | None = None,
        max_bytes: int | None = None,
    ) -> LogChunk:
        """Return a part of one process's output; by default the end of worker-0's.

        ``start`` is the first byte, and ``max_bytes`` the maximum number of bytes.
        """
        return await self.send(calls.logs(name, process, generation, start, max_bytes))

    async def follow_logs(
        self, name: str, *, process: str = "worker-0", start: int | None = None
    ) -> AsyncIterator[LogChunk]:
        """Yield a process's output, generation after generation, until the job is closed.

        ``start`` is the first byte; None starts with the last lines of the current output.
        """
        name = f"id:{(await self.job(name)).id}"  # another job may get the name meanwhile
        generation: int | None = None
        while True:
            chunk = await self._piece(name, process, generation, start)
            if chunk is not None:
                generation, start = chunk.generation, chunk.end
                if chunk.text:
                    yield chunk
                    continue
            if chunk is None or chunk.complete:
                job = await self.job(name)
                if generation is not None and job.generation > generation:
                    following = await self._piece(name, process, generation + 1, 0)
                    if following is not None or job.generation > generation + 1:
                        generation, start = generation + 1, 0
                        continue
                if not job.open:
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
            return None  # the generation hasn't started, or has no such process

    async def wait(self, name: str, *, timeout: float | None = None) -> Job:
        """Return a job once it is closed; raise `TimeoutError` after ``timeout`` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = 0.1
        reference = name
        while (job := await self.job(reference)).open:
            reference = f"id:{job.id}"  # another job may get the name meanwhile
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"job {name!r} is still {job.state}")
            await asyncio.sleep(min(pause, remaining))
            pause = min(pause * 1.5, 2.0)
        return job

    async def quote(self, job: Json, *, outlook: bool = False) -> Quote:
        """Return the decision that a job would get now; reserves nothing.

        ``outlook`` is that of `explain`.
        """
        return await self.send(calls.quote(job, outlook=outlook))

    # -------------------------------------------------------------- cluster

    async def prices(self, slots: int | None = None) -> tuple[PriceSlot, ...]:
        """Return prices by kind of server over the coming slots."""
        return await self.send(calls.prices(slots))

    async def servers(self) -> tuple[Server, ...]:
        """Return the servers with their jobs."""
        return await self.send(calls.servers())

    async def add_servers(self, server: Json) -> tuple[Server, ...]:
        """Add a server, or ``count`` equal ones, as in a cluster file."""
        return await self.send(calls.add_servers(server))

    async def drain(self, name: str) -> Server:
        """Drain a server; jobs there run on until the end of the slot."""
        return await self.send(calls.change_server(name, {"drain": True}))

    async def cordon(self, name: str) -> Server:
        """Cordon a server; jobs there run until they end."""
        return await self.send(calls.change_server(name, {"cordon": True}))

    async def uncordon(self, name: str) -> Server:
        """Return a drained or cordoned server to service."""
        return await self.send(calls.change_server(name, {"drain": False}))

    async def change_server(self, name: str, /, **changes: object) -> Server:
        """Change a server's ``capacity``, ``role`` or ``cost``."""
        return await self.send(calls.change_server(name, changes))

    async def remove_server(self, name: str) -> None:
        """Remove a server; jobs there are replanned."""
        await self.send(calls.remove_server(name))

    async def tenants(self) -> tuple[Tenant, ...]:
        """Return the tenants."""
        return await self.send(calls.tenants())

    async def put_tenant(
        self, name: str, share: Json | None = None, *, budget: Json | None = None
    ) -> Tenant:
        """Add a tenant, or change its share or budget; None keeps the current value."""
        return await self.send(calls.put_tenant(name, share, budget))

    async def remove_budget(self, name: str) -> Tenant:
        """Remove a tenant's budget; its remaining points expire."""
        return await self.send(calls.remove_budget(name))

    async def grant(self, name: str, points: float, *, note: str = "") -> Tenant:
        """Grant a tenant points beyond its budget. Not idempotent."""
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

        The entries are of the kinds ``kinds`` (all if empty), from ``since`` to before ``until``
        (times with a time zone), or of the period ``back``: 0 is the current one, 1 the previous
        one. ``cursor`` is the ``next`` of the previous page, and ``limit`` the maximum length of
        the page.
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
        """Yield the entries of a tenant's account, newest first."""
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
        """Return all tokens, without their secrets."""
        return await self.send(calls.tokens())

    async def create_token(
        self, tenant: str | None = None, *, expires: str | None = None, note: str = ""
    ) -> NewToken:
        """Create a token: a tenant's, or an operator's if ``tenant`` is None."""
        return await self.send(calls.create_token(tenant, expires=expires, note=note))

    async def revoke_token(self, number: int) -> None:
        """Revoke a token."""
        await self.send(calls.revoke_token(number))

    def decisions(
        self, *, job: str | None = None, tenant: str | None = None
    ) -> AsyncIterator[StoredEvent]:
        """Yield the policy's decisions, newest first."""
        return self._entries(lambda cursor: calls.decisions(job, tenant, cursor))

    async def start_whatif(
        self,
        days: float | None = None,
        servers: Mapping[str, int] | None = None,
        policy: str | None = None,
        settings: Json | None = None,
        at: datetime | None = None,
    ) -> WhatIf:
        """Start a what-if run, which simulates the last days; returns at once.

        The run repeats the last ``days`` with ``servers`` added by kind (negative: removed), under
        ``policy`` with its ``settings``; None is the service's own policy. The days end ``at`` a
        moment, by default now.
        """
        return await self.send(calls.start_whatif(days, servers, policy, settings, at))

    async def whatif(self, run: int) -> WhatIf:
        """Return the progress and the result of a what-if run."""
        return await self.send(calls.whatif(run))

    async def whatifs(self) -> tuple[WhatIf, ...]:
        """Return the what-if runs, newest first."""
        return await self.send(calls.whatifs())

    async def cancel_whatif(self, run: int) -> WhatIf:
        """Cancel a what-if run."""
        return await self.send(calls.cancel_whatif(run))

    async def comparison(self, days: float | None = None) -> Comparison:
        """Compare an observing service's decisions with what really ran."""
        return await self.send(calls.comparison(days))

    def compared_jobs(self) -> AsyncIterator[ComparedJob]:
        """Yield jobs with both of their histories, newest first."""
        return self._entries(calls.compared_jobs)

    async def service(self) -> ServiceStatus:
        """Return the service's version, configuration and status."""
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
        """Yield events as they happen, without end.

        ``after`` is the number of the event to resume after; None starts with the next event. With
        ``reconnect``, a stream that ended is resumed without gaps.
        """
        decoder = SseDecoder(after)
        delays = reconnect_delays()
        has_connected = False  # without a first connection, the address may be wrong
        while True:
            try:
                query = {} if decoder.last is None else {"after": decoder.last}
                async with self._http.stream(
                    "GET",
                    "/v1/events",
                    params=query,
                    headers={"Accept": "text/event-stream"},
                    timeout=httpx.Timeout(10.0, read=STREAM_READ_TIMEOUT_SECONDS),
                ) as response:
                    if not response.is_success:
                        await response.aread()
                        raise to_service_error(response)
                    check_stream(response)
                    has_connected = True
                    async for line in response.aiter_lines():
                        for event in decoder.feed(line):
                            delays = reconnect_delays()
                            yield event
            except httpx.HTTPError as error:
                if not (reconnect and has_connected):
                    raise to_unreachable_error(self.address, error) from error
            except Exception as error:
                if not (reconnect and has_connected and is_retryable(error)):
                    raise
            if not reconnect:
                return
            decoder.broken()
            await asyncio.sleep(next(delays))
