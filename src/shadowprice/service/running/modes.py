"""Commanding what runs, or only observing it: the two are not mixed."""

from __future__ import annotations

import pwd

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import JobSpec
from shadowprice.core.wording import shown
from shadowprice.executors.contract import Executor
from shadowprice.service.settings import NOTHING, Settings
from shadowprice.service.store import Store


def check_executor(settings: Settings, executor: Executor | None) -> None:
    """Refuse an executor that cannot do what the service is for.

    Raises
    ------
    InputError
        If there is none to run jobs, or one that cannot see what others run.
    """
    if executor is None and not settings.observe:
        raise InputError(Fault("--executor", "nothing would run", "add --observe"))
    if settings.observe and executor is not None and not executor.capabilities.observes:
        raise InputError(
            Fault(
                "--executor",
                f"{settings.executor} cannot tell what others run",
                f"use --executor {NOTHING}, which plays decisions alone",
            )
        )


def check_users(settings: Settings, executor: Executor | None) -> None:
    """Refuse to let jobs run as users that they cannot become.

    Raises
    ------
    InputError
        If the executor runs all jobs as one user, or a user is none of this machine, or root.
    """
    if not settings.users or executor is None or settings.observe:
        return
    if not executor.capabilities.isolates_users:
        mend = "leave it out, or start the service as root with --executor local"
        raise InputError(Fault("--allow-user", "here all jobs run as the service's user", mend))
    for name in {user for users in settings.users.values() for user in users}:
        try:
            number = pwd.getpwnam(name).pw_uid
        except KeyError:
            fault = Fault("--allow-user", f"there is no user {shown(name)}", "make it first")
            raise InputError(fault) from None
        if number == 0:
            raise InputError(Fault("--allow-user", "no job runs as root", "name another user"))


def user_fault(settings: Settings, spec: JobSpec, place: str) -> Fault | None:
    """Return what is wrong with the user that a job asks for, None where it is allowed."""
    if spec.run is None:
        return None
    allowed = settings.users_of(spec.tenant)
    if spec.run.user in allowed or (spec.run.user is None and not settings.users):
        return None
    where = f"{place}.run.user" if place else "run.user"
    known = f"one of: {', '.join(allowed)}" if allowed else "ask the operator (--allow-user)"
    if spec.run.user is None:
        return Fault(where, "is missing: here every job has to name its user", known)
    if not settings.users:
        mend = "leave it out: here jobs run as the service's user"
        return Fault(where, f"{shown(spec.run.user)} is not allowed", mend)
    return Fault(where, f"{shown(spec.run.user)} is not allowed to this tenant", known)


def check_mode(store: Store, open_jobs: int, *, observe: bool) -> None:
    """Refuse to command what was only observed, or the other way, while jobs are open.

    What runs on paper does not run: a service that went on from there would start jobs a second
    time, beside those that another scheduler runs.

    Raises
    ------
    InputError
        If jobs are open that were taken in the other way.
    """
    mode, known = ("observe" if observe else "command"), store.get("mode")
    if known is not None and known != mode and open_jobs:
        if observe:
            was, mend = "really run", "leave --observe out"
        else:
            was, mend = "only observed", "add --observe"
        raise InputError(
            Fault(
                f"--data {store.shown}",
                f"holds {open_jobs} open jobs that were {was}",
                f"{mend}, cancel them first, or begin with other data",
            )
        )
    if known != mode:
        with store.transaction() as connection:
            store.put(connection, "mode", mode)
