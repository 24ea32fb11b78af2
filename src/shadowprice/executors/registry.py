"""Executors by name; what brings an optional one is said where it is missing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from shadowprice.core.errors import Fault, InputError, MissingExtraError
from shadowprice.core.wording import closest, shown
from shadowprice.executors.contract import Executor, ExecutorOptions


class MissingExecutorError(MissingExtraError):
    """An executor's library is not installed; the call is wrong, not the run."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """An executor that can be chosen.

    Parameters
    ----------
    name : str
        What ``--executor`` takes.
    summary : str
        One line for people.
    factory : str
        ``module:callable`` that makes it from `ExecutorOptions`.
    needs : str
        The top-level package it cannot do without; empty for none.
    extra : str
        The extra of this package that brings it.
    addressed : bool
        Whether it runs jobs elsewhere, at an address.
    """

    name: str
    summary: str
    factory: str
    needs: str = ""
    extra: str = ""
    addressed: bool = False


EXECUTORS: Final[Mapping[str, Entry]] = {
    entry.name: entry
    for entry in (
        Entry(
            "local",
            "processes on this machine, its servers slices of it",
            "shadowprice.executors.local.executor:LocalExecutor",
        ),
        Entry(
            "ray",
            "actors of a Ray cluster, its nodes the servers",
            "shadowprice.executors.ray.executor:RayExecutor",
            needs="ray",
            extra="ray",
            addressed=True,
        ),
        Entry(
            "kubernetes",
            "pods of a Kubernetes cluster, its nodes the servers",
            "shadowprice.executors.kubernetes.executor:KubernetesExecutor",
            needs="kubernetes_asyncio",
            extra="kubernetes",
            addressed=True,
        ),
    )
}
"""Every executor by name."""


def create(name: str, options: ExecutorOptions) -> Executor:
    """Make an executor; nothing is opened yet.

    Raises
    ------
    InputError
        If there is none of that name, or it has no address and is given one.
    MissingExecutorError
        If what it needs is not installed.
    """
    entry = EXECUTORS.get(name)
    if entry is None:
        likely = closest(name, EXECUTORS)
        mend = f"did you mean {likely!r}?" if likely else f"one of: {', '.join(EXECUTORS)}"
        raise InputError(Fault("--executor", f"unknown executor {shown(name)}", mend))
    if options.address and not entry.addressed:
        mend = f"leave it out, or choose --executor {_addressed()}"
        raise InputError(Fault("--address", f"the executor {name} runs jobs here", mend))
    if entry.needs and importlib.util.find_spec(entry.needs) is None:
        raise MissingExecutorError(entry.needs, entry.extra, f"the executor {name}")
    module, _, factory = entry.factory.partition(":")
    make = getattr(importlib.import_module(module), factory)
    return cast("Callable[[ExecutorOptions], Executor]", make)(options)


def _addressed() -> str:
    return " or ".join(name for name, entry in EXECUTORS.items() if entry.addressed)
