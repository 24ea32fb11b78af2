"""Executors by name: built-in, from installed packages (entry points), or from files."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from shadowprice.core.errors import Fault, InputError, MissingExtraError
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.executors.contract import Executor, ExecutorOptions
from shadowprice.extensions import EXECUTORS as EXECUTOR_GROUP
from shadowprice.extensions import (
    Extension,
    FileExtension,
    installed_extensions,
    is_file_reference,
)


class MissingExecutorError(MissingExtraError):
    """An executor's library isn't installed; a usage error."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """An executor of this package."""

    name: str  # value of ``--executor``
    summary: str  # one line for people
    factory: str  # ``module:callable`` that takes `ExecutorOptions`
    needs: str = ""  # package that connects to a remote cluster, of the extra ``name``


EXECUTORS: Final[Mapping[str, ExecutorInfo]] = {
    "local": ExecutorInfo(
        "local",
        "processes on this machine; the servers are slices of it",
        "shadowprice.executors.local.executor:LocalExecutor",
    ),
    "ray": ExecutorInfo(
        "ray",
        "actors of a Ray cluster; its nodes are the servers",
        "shadowprice.executors.ray.executor:RayExecutor",
        needs="ray",
    ),
    "kubernetes": ExecutorInfo(
        "kubernetes",
        "pods of a Kubernetes cluster; its nodes are the servers",
        "shadowprice.executors.kubernetes.executor:KubernetesExecutor",
        needs="kubernetes_asyncio",
    ),
}


def create_executor(name: str, options: ExecutorOptions) -> Executor:
    """Create an executor by its name or by ``./file.py:NAME``, without opening it.

    Raises InputError if the executor can't be loaded, or has an address that it doesn't take.
    Raises `MissingExecutorError` if a package that it requires isn't installed.
    """
    if is_file_reference(name):
        return _create_external(FileExtension.read(name, "--executor"), options)
    entry = EXECUTORS.get(name)
    if entry is None:
        installed = installed_extensions(EXECUTOR_GROUP)
        if name in installed:
            return _create_external(installed[name], options)
        names = [*EXECUTORS, *installed]
        hint = hint_for_unknown(name, names)
        raise InputError(Fault("--executor", f"unknown executor {quote_for_display(name)}", hint))
    if options.address and not entry.needs:  # only remote executors need a package
        addressed = " or ".join(other.name for other in EXECUTORS.values() if other.needs)
        hint = f"leave it out, or choose --executor {addressed}"
        raise InputError(Fault("--address", f"the executor {name} runs jobs here", hint))
    if entry.needs and importlib.util.find_spec(entry.needs) is None:
        raise MissingExecutorError(entry.needs, name, f"the executor {name}")
    module, _, factory = entry.factory.partition(":")
    make = getattr(importlib.import_module(module), factory)
    return cast("Callable[[ExecutorOptions], Executor]", make)(options)


def _create_external(extension: Extension, options: ExecutorOptions) -> Executor:
    loaded = extension.load()
    location = f"--executor {extension.name}"
    if isinstance(extension, FileExtension):
        location = extension.reference
    hint = "name a class or function that takes ExecutorOptions and returns an Executor"
    try:
        inspect.signature(loaded).bind(options)
    except (TypeError, ValueError) as error:
        message = f"can't be made from executor options: {error}"
        raise InputError(Fault(location, message, hint)) from error
    executor = loaded(options)
    if not isinstance(executor, Executor):
        missing = [name for name in _METHODS if not hasattr(executor, name)]
        message = f"expected an executor; it lacks {', '.join(missing)}"
        raise InputError(Fault(location, message, hint))
    return executor


_METHODS: Final = tuple(name for name in vars(Executor) if not name.startswith("_"))
