"""References to jobs in requests: a name, ``tenant/name`` or an id.

A tenant's references never reach the jobs of another tenant, and the work to resolve one doesn't
depend on them: the answer and its time don't reveal the names that other tenants use.
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

MAX_LISTED_JOBS: Final = 10
MAX_ID_DIGITS: Final = 18  # the store's integers have 64 bits


def parse_id(text: str) -> int | None:
    """Return the id that a text of digits states; None for other texts."""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS
    return int(text) if is_number else None


async def find_job(
    service: Service, caller: Caller, reference: str, tenant: str | None = None
) -> JobView:
    """Return the job that a reference means to its caller, open or closed.

    A name means the open job of that name, or the newest closed one. An operator may write
    ``tenant/name``, or ``/name`` for a job without a tenant. A number is an id if it isn't a name,
    and ``id:17`` always is. Only jobs of ``tenant`` count if it is stated. Raise `ProblemError` if
    the caller has no such job, and `InputError` if several tenants have jobs of that name.
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


JobDep = Annotated[JobView, Depends(_referenced_job)]  # the job that ``{name}`` in a path means


async def _jobs_with_id(service: Service, caller: Caller, number: int | None) -> list[JobView]:
    if number is None:
        return []
    view = service.require_writer().published.job_with_id(number)
    if view is None:
        view = await service.read(store_queries.job_by_id, number)
    is_visible = view is not None and (caller.is_operator or view.tenant == caller.tenant)
    return [view] if view is not None and is_visible else []


async def _jobs_with_name(service: Service, scope: str | None, reference: str) -> list[JobView]:
    """Return the jobs that a name means: open ones, else the newest of each tenant."""
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
        found = (
            [] if scope is not None else store_queries.jobs_of_all_tenants(connection, reference)
        )
        for name in qualified:
            view = store_queries.newest_job(connection, name)
            if view is not None and all(view.id != other.id for other in found):
                found.append(view)
        opened = [view for view in found if view.state.open]
        return opened or found

    return await service.read(read)


def _qualified_names(scope: str | None, reference: str) -> list[str]:
    """Return the qualified names that a reference may state, of a tenant's own jobs only."""
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
    """Return the key and generation of a progress token, which must be the referenced job's."""
    key, generation = verify_progress_token(service.key, header)
    if reference in {name_of_key(key), shown_key(key)}:
        return key, generation
    view = await find_view(service, key)
    number = parse_id(reference.removeprefix(ID_PREFIX))
    if view is None or view.id != number:
        raise invalid_progress_token()
    return key, generation
