"""Commanding what runs, or only observing it: the two are not mixed."""

from __future__ import annotations

from shadowprice.core.errors import Fault, InputError
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
