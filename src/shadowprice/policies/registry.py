"""Finding policies by name: the folders under ``policies`` list them in ``POLICIES``.

The declaration is light: the code behind ``build`` is imported when the policy is first built.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.core.specs import Bounded, validate
from shadowprice.core.wording import closest, shown
from shadowprice.kernels.manifest import manifest


class Settings(Bounded):
    """Base of parameters: frozen and bounded, and unknown names are errors."""


Preset = Literal["none", "paper"]


class Parameters(Settings):
    """Base of every policy's parameters: the defaults serve users, a preset gives the paper's."""

    paper_settings: ClassVar[Mapping[str, object]] = {}
    """What ``preset=paper`` sets; nothing where the defaults are what the paper prints."""

    preset: Preset = Field(
        default="none",
        description="paper: the settings that its paper prints; what else is set goes before them",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_the_preset(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("preset") == "paper":
            return {**cls.paper_settings, **value}
        return value


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """What a policy is.

    Parameters
    ----------
    name : str
        Name on the command line.
    summary : str
        One sentence.
    paper : str
        Where it is described.
    parameters : type of Parameters
        Its parameters; every field carries a description.
    build : str
        ``module:function``; called as ``function(context, parameters)`` and returns a policy.
    details : str
        What a reader should know before using it (what is left out, when it is slow).
    counts_places : bool
        Whether servers have to count places for it, ``{worker: 8, ps: 1}``, as
        `tenants.tenancy` reads them; a job's worker and parameter server take one each.
    knows_all_jobs : bool
        Whether it needs the whole job set beforehand, which a simulation alone can tell.
    live_settings : mapping
        Parameters whose default is another where jobs really run, and moving them costs.
    """

    name: str
    summary: str
    paper: str
    parameters: type[Parameters]
    build: str
    details: str = ""
    counts_places: bool = False
    knows_all_jobs: bool = False
    live_settings: Mapping[str, object] = field(default_factory=dict)


@cache
def policies() -> Mapping[str, PolicyInfo]:
    """Return every policy by name, in alphabetical order."""
    found: dict[str, PolicyInfo] = {}
    for name in _packages("shadowprice.policies"):
        module = importlib.import_module(name)
        for info in getattr(module, "POLICIES", ()):
            found[info.name] = info
    return dict(sorted(found.items()))


def _packages(root: str) -> Iterable[str]:
    for entry in pkgutil.walk_packages(importlib.import_module(root).__path__, f"{root}."):
        if entry.ispkg:
            yield entry.name


def policy_info(name: str) -> PolicyInfo:
    """Return a policy's declaration.

    Raises
    ------
    InputError
        If there is no such policy, with the nearest name.
    """
    known = policies()
    if name not in known:
        close = closest(name, known)
        mend = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
        raise InputError(Fault("policy", f"unknown policy {shown(name)}", mend))
    return known[name]


def policy_parameters(name: str, settings: Mapping[str, Any]) -> Parameters:
    """Return the validated parameters of a policy.

    Raises
    ------
    InputError
        If the policy or a parameter is unknown, or a value is out of range.
    """
    model = policy_info(name).parameters
    bounds.SETTINGS.check(_leaves(settings), f"policy {name}")
    parameters, faults = validate(model, dict(settings), f"policy {name}")
    if parameters is None:
        raise InputError(faults)
    return parameters


def _leaves(settings: Mapping[str, Any]) -> int:
    """Return how many values nested settings hold."""
    waiting: list[Any] = [settings]
    count = 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            waiting.extend(part.values())
        else:
            count += 1
    return count


def make_policy(name: str, context: PolicyContext, settings: Mapping[str, Any]) -> Policy:
    """Build a policy.

    Parameters
    ----------
    name : str
        Name on the command line.
    context : PolicyContext
        What it may know.
    settings : mapping
        Parameters by name; nested ones as nested mappings.

    Raises
    ------
    InputError
        If the policy or a parameter is unknown, a value is out of range, or the policy needs to
        know jobs that the context does not tell.
    """
    info = policy_info(name)
    parameters = policy_parameters(name, settings)
    if info.knows_all_jobs and context.known_jobs is None:
        mend = "use it in a simulation only"
        raise InputError(Fault(f"policy {name}", "needs to know all jobs beforehand", mend))
    module, _, function = info.build.partition(":")
    build = getattr(importlib.import_module(module), function)
    if name in manifest():
        # The compiler is loaded only for policies that have kernels.
        importlib.import_module("shadowprice.kernels.warming").prepare([name])
    return cast(Policy, build(context, parameters))


def nested(settings: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Turn dotted names, as ``--set`` gives them, into nested mappings.

    Raises
    ------
    InputError
        If a name is given as a value and as a group.
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
