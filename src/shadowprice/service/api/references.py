"""References to jobs in requests: a name, ``tenant/name`` or an id.

A tenant's references never find jobs of another tenant. Neither the answer nor its duration depends
on other tenants' jobs, so that they don't reveal the names that these use.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends
from sqlalchemy import Connection

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job_keys import ID_PREFIX, name_of_key, qualified_name, shown_key
from shadowprice.core.wording import quote_for_display
from shadowprice.service.api.requests import CallerDep, ServiceDep
from shadowprice.service.auth import Caller, invalid_progress_token, verify_progress_token
from shadowprice.service.host import find_view
from shadowprice.service.problems import ProblemError
from shadowprice.service.service import Service
from shadowprice.service.state import store_queries
from shadowprice.service.state.job_views import JobView

MAX_LISTED_JOBS: Final = 10  # in a message
MAX_ID_DIGITS: Final = 18  # because the store's integers have 64 bits


def parse_id(text: str) -> int | None:
    """Parse an id; return None if the text isn't an integer that the store can hold."""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS
    return int(text) if is_number else None


async def find_job(
    service: Service, caller: Caller, reference: str, tenant: str | None = None
) -> JobView:
    """Return the job that a reference of a caller means, open or closed.

    A name means the open job of that name, or else the newest closed one. An operator may write
    ``tenant/name``, or ``/name`` for a job without a tenant. A number is an id if no job has it as
    its name; ``id:17`` is always an id. ``tenant`` limits the result to jobs of that tenant. Raise
    `ProblemError` without such a job, and `InputError` if several tenants have jobs of that name.
    """
    if reference.startswith(ID_PREFIX):
        views = await _jobs_with_id(service, caller, parse_id(reference.removeprefix(ID_PREFIX)))
    else:
        views = await _jobs_with_name(service, caller.scope or tenant, reference)
        if not views:
            views = await _jobs_with_id(service, caller, parse_id(reference))
    if tenant is not None:
        views = [view for view in views if view.tenant == tenant]
    if not views:
        raise ProblemError("not-found", f"unknown job {quote_for_display(reference)}")
    if len(views) > 1:
        raise _ambiguous(reference, views)
    return views[0]


async def _referenced_job(name: str, service: ServiceDep, caller: CallerDep) -> JobView:
    return await find_job(service, caller, name)


JobDep = Annotated[JobView, Depends(_referenced_job)]  # the job of ``{name}`` in a path


async def _jobs_with_id(service: Service, caller: Caller, number: int | None) -> list[JobView]:
    if number is None:
        return []
    view = service.require_writer().published.job_with_id(number)
    if view is None:
        view = await service.read(store_queries.job_by_id, number)
    is_visible = view is not None and (caller.is_operator or view.tenant == caller.tenant)
    return [view] if view is not None and is_visible else []


async def _jobs_with_name(service: Service, scope: str | None, reference: str) -> list[JobView]:
    """Return the jobs of a name in a scope: open jobs, or else the newest of each tenant."""
    published = service.require_writer().published
    qualified = _qualified_names(scope, reference)
    views = [] if scope is not None else published.jobs_with_name(reference)
    for name in qualified:
        view = published.job_with_qualified_name(name)
        if view is not None and view not in views:
            views.append(view)
    if views:
        return views

    def read(connection: Connection) -> list[JobView]:
        jobs = [] if scope is not None else store_queries.jobs_of_all_tenants(connection, reference)
        for name in qualified:
            view = store_queries.newest_job(connection, name)
            if view is not None and all(view.id != other.id for other in jobs):
                jobs.append(view)
        open_jobs = [view for view in jobs if view.state.open]
        return open_jobs or jobs

    return await service.read(read)


def _qualified_names(scope: str | None, reference: str) -> list[str]:
    """Return the qualified names that a reference may be; for a tenant, of its own jobs only."""
    if scope is None:
        tenant, slash, name = reference.partition("/")
        names = [reference.removeprefix("/"), qualified_name(tenant or None, name)] if slash else []
    else:
        names = [qualified_name(scope, reference)]
        prefix = qualified_name(scope, "")
        if reference.startswith(prefix):
            names += [reference, qualified_name(scope, reference.removeprefix(prefix))]
    return list(dict.fromkeys(names))  # a name may be written with or without escapes


def _ambiguous(reference: str, views: list[JobView]) -> InputError:
    names = []
    for view in views[:MAX_LISTED_JOBS]:
        name = f"{'' if view.tenant else '/'}{qualified_name(view.tenant, view.name)}"
        names.append(f"id:{view.id}" if name == reference else f"{name} (id {view.id})")
    more = f" and {len(views) - MAX_LISTED_JOBS} more" if len(views) > MAX_LISTED_JOBS else ""
    message = f"{quote_for_display(reference)} is the name of {len(views)} jobs"
    return InputError(Fault("job", message, f"write one of: {', '.join(names)}{more}, or an id"))


async def find_reporting_job(
    service: Service, reference: str, header: str | None
) -> tuple[str, int]:
    """Return the job's key and the generation of a progress token of the referenced job."""
    key, generation = verify_progress_token(service.key, header)
    if reference in {name_of_key(key), shown_key(key)}:
        return key, generation
    view = await find_view(service, key)
    number = parse_id(reference.removeprefix(ID_PREFIX))
    if view is None or view.id != number:
        raise invalid_progress_token()
    return key, generation
