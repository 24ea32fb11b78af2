"""Policies by name: built-in ones, entry points of installed packages, and files of users.

A `PolicyInfo` declares a policy. The code of a built-in policy is only imported when it is built.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Final, Literal, cast

from pydantic import Field, model_validator

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Policy, PolicyContext
from shadowprice.core.specs import LimitedModel, validate
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.extensions import (
    POLICIES,
    Extension,
    FileExtension,
    InstalledExtension,
    installed_extensions,
    parse_summary,
)

Preset = Literal["none", "paper"]


class Parameters(LimitedModel):
    """Base of every policy's parameters. Defaults suit users; a preset has the paper's values."""

    paper_settings: ClassVar[Mapping[str, object]] = {}
    """Values that ``preset=paper`` sets; empty if the defaults are those of the paper."""

    def random_draws_text(self, jobs: Iterable[Job]) -> str:
        """Describe what the policy draws at random for these jobs; empty if nothing."""
        del jobs
        return ""

    preset: Preset = Field(
        default="none",
        description="paper: the values that its paper prints; parameters that are set win",
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("preset") == "paper":
            return {**cls.paper_settings, **value}
        return value


Build = Callable[[PolicyContext, Any], Policy]


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """Declaration of a policy."""

    name: str
    summary: str
    """One sentence."""
    paper: str
    """Citation of the policy's paper or source; empty for a user's own policy."""
    parameters: type[Parameters]
    """Model of its parameters; every field carries a description."""
    build: str | Build
    """``module:callable``, or the callable that builds the policy from context and parameters."""
    details: str = ""
    """Remarks for users, such as what the policy leaves out, or when it is slow."""
    counts_places: bool = False
    """Whether servers must state units, such as ``{worker: 8, ps: 1}``; a process takes one."""
    knows_all_jobs: bool = False
    """Whether the policy needs the whole job set in advance, which only a simulation has."""
    live_settings: Mapping[str, object] = field(default_factory=dict)
    """Defaults that differ in a live service, where moving a job costs time."""
    extension: Extension | None = None
    """Origin of a policy from outside this package."""


@cache
def builtin_policies() -> Mapping[str, PolicyInfo]:
    """Return the policies of this package by name: ``POLICIES`` of each of its packages."""
    by_name: dict[str, PolicyInfo] = {}
    root = importlib.import_module("shadowprice.policies")
    for module_info in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        # Only an ``__init__.py`` declares policies, so slow modules are not imported.
        module = importlib.import_module(module_info.name) if module_info.ispkg else None
        for info in getattr(module, "POLICIES", ()):
            by_name[info.name] = info
    return by_name


def installed_policies() -> Mapping[str, InstalledExtension]:
    """Return the entry points of policies by name; built-in policies win over equal names."""
    points = installed_extensions(POLICIES)
    return {name: point for name, point in points.items() if name not in builtin_policies()}


def policy_names() -> list[str]:
    """Return the names of all registered policies, sorted, without importing them."""
    return sorted({*builtin_policies(), *installed_policies()})


def policies() -> Mapping[str, PolicyInfo]:
    """Return every registered policy by name, in alphabetical order.

    A broken entry point is left out, so that it doesn't disable the other policies.
    """
    by_name: dict[str, PolicyInfo] = dict(builtin_policies())
    for name in installed_policies():
        with suppress(InputError):
            by_name[name] = policy_info(name)
    return dict(sorted(by_name.items()))


def policy_info(name: str) -> PolicyInfo:
    """Return the declaration of a registered policy.

    Raises `InputError` if the name is unknown, with the closest known name as a hint, or if its
    entry point can't be loaded.
    """
    if name in builtin_policies():
        return builtin_policies()[name]
    if name in installed_policies():
        return extension_info(installed_policies()[name])
    known = policy_names()
    hint = hint_for_unknown(name, known)
    raise InputError(Fault("policy", f"unknown policy {quote_for_display(name)}", hint))


@cache
def extension_info(extension: Extension) -> PolicyInfo:
    """Return the declaration of a policy from outside this package.

    The extension's object is a `PolicyInfo` or a policy class. For a class, the docstring is the
    summary and the details, and the attribute ``Parameters`` is the model of its parameters. Raises
    `InputError` if the object can't be loaded, or is neither a `PolicyInfo` nor a policy class.
    """
    loaded = extension.load()
    if isinstance(extension, FileExtension):
        name, location = extension.label, extension.reference
    else:
        name, location = extension.name, f"{extension.group}: {extension.name}"
    if isinstance(loaded, PolicyInfo):
        return replace(loaded, name=name, extension=extension)
    _check_class(loaded, location)
    summary, details = parse_summary(loaded)
    declared = {
        field.name: getattr(loaded, field.name)
        for field in fields(PolicyInfo)
        if field.name not in _NOT_DECLARED and hasattr(loaded, field.name)
    }
    return PolicyInfo(
        name=name,
        summary=summary,
        parameters=getattr(loaded, "Parameters", Parameters),
        build=loaded,
        details=details,
        extension=extension,
        **{"paper": "", **declared},  # `paper` has no default, and a class may omit it
    )


_NOT_DECLARED: Final = frozenset({"name", "summary", "parameters", "build", "details", "extension"})
"""Fields of `PolicyInfo` that a policy's class doesn't declare by attributes of the same names."""

_METHODS: Final = tuple(
    name for name, value in vars(Policy).items() if inspect.isfunction(value) and name[0] != "_"
)


def _check_class(loaded: object, location: str) -> None:
    hint = "derive it from shadowprice.policies.base.BasePolicy (docs/extending.md)"
    if not isinstance(loaded, type):
        message = f"expected a policy class, got {_kind(loaded)}"
        raise InputError(Fault(location, message, "name the class"))
    missing = [name for name in _METHODS if not callable(getattr(loaded, name, None))]
    if missing:
        message = f"expected a policy class; it lacks {', '.join(missing)}"
        raise InputError(Fault(location, message, hint))
    unwritten = sorted(getattr(loaded, "__abstractmethods__", ()))
    if unwritten:
        message = f"the policy class doesn't define {', '.join(unwritten)}"
        raise InputError(Fault(location, message, "define them, or name the class that does"))
    model = getattr(loaded, "Parameters", Parameters)
    if not (isinstance(model, type) and issubclass(model, Parameters)):
        message = f"expected a model in Parameters, got {_kind(model)}"
        hint = "derive it from shadowprice.policies.registry.Parameters"
        raise InputError(Fault(location, message, hint))
    try:
        inspect.signature(loaded).bind(None, None)
    except (TypeError, ValueError) as error:
        message = f"can't be built from context and parameters: {error}"
        hint = "define __init__(self, context, parameters)"
        raise InputError(Fault(location, message, hint)) from error


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def policy_parameters(policy: str | PolicyInfo, settings: Mapping[str, Any]) -> Parameters:
    """Return a policy's validated parameters; raise `InputError` if a name or value is wrong."""
    info = policy_info(policy) if isinstance(policy, str) else policy
    location = f"policy {info.name}"
    bounds.SETTINGS.check(_count_values(settings), location)
    parameters, faults = validate(info.parameters, dict(settings), location)
    if parameters is None:
        raise InputError(faults)
    return parameters


def _count_values(settings: Mapping[str, Any]) -> int:
    pending: list[Any] = [settings]
    count = 0
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            pending.extend(part.values())
        else:
            count += 1
    return count


def make_policy(
    policy: str | PolicyInfo, context: PolicyContext, settings: Mapping[str, Any]
) -> Policy:
    """Build a policy; ``settings`` are parameters by name, dotted names as nested mappings.

    Raises `InputError` if the policy or a parameter is unknown, a value is out of range, or the
    policy needs jobs in advance that the context doesn't have.
    """
    info = policy_info(policy) if isinstance(policy, str) else policy
    parameters = policy_parameters(info, settings)
    location = f"policy {info.name}"
    if info.knows_all_jobs and context.known_jobs is None:
        hint = "use it in a simulation with known lengths"
        raise InputError(Fault(location, "needs to know all jobs beforehand", hint))
    build = info.build
    if isinstance(build, str):
        module, _, name = build.partition(":")
        build = cast(Build, getattr(importlib.import_module(module), name))
    built = build(context, parameters)
    if not isinstance(getattr(built, "capabilities", None), Capabilities):
        hint = "set capabilities = Capabilities(...) from shadowprice.core.policy"
        raise InputError(Fault(location, "has no capabilities", hint))
    return built


def nest_dotted_keys(settings: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Convert dotted names of ``--set`` into nested mappings.

    Raises `InputError` if a name is both a value and a group: ``a=1`` and ``a.b=2``.
    """
    result: dict[str, Any] = {}
    for name, value in settings:
        *groups, last = name.split(".")
        target = result
        for group in groups:
            inner = target.setdefault(group, {})
            if not isinstance(inner, dict):
                raise InputError(f"--set {name}: {group!r} is set as a value already")
            target = inner
        target[last] = value
    return result
