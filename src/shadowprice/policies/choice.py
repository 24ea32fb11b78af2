"""A policy with its parameters: read from what people write, named in tables, and built."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.core.wording import shown
from shadowprice.policies.registry import (
    Parameters,
    make_policy,
    nested,
    policy_info,
    policy_parameters,
)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Who decides.

    Parameters
    ----------
    name : str
        Name of the policy.
    settings : mapping of str to object
        Its parameters, as they were set; nested ones as nested mappings.
    titled : str
        What tables call it; empty for its name and parameters.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    titled: str = ""

    @classmethod
    def parse(cls, text: str) -> PolicyChoice:
        """Read a policy with parameters behind a ``?``: ``oasis?preset=paper&split=half``.

        Raises
        ------
        InputError
            If there is no such policy, or a parameter has no value.
        """
        name, _, rest = text.partition("?")
        policy_info(name)
        bounds.SETTINGS.check(rest.count("&") + 1, f"--policy {shown(name)}")
        pairs = [pair for pair in rest.split("&") if pair]
        settings: dict[str, Any] = {}
        for pair in pairs:
            merge(settings, setting(pair, f"--policy {name}"))
        return cls(name, settings, " ".join((name, *pairs)))

    @property
    def label(self) -> str:
        """What tables and folders call it."""
        pairs = (f"{key}={value}" for key, value in self.settings.items())
        return self.titled or " ".join((self.name, *pairs))

    def over(self, settings: Mapping[str, Any]) -> PolicyChoice:
        """Return the same choice, under the same label, with its parameters on top of others."""
        merged = dict(deepcopy(settings))
        merge(merged, self.settings)
        return replace(self, settings=merged, titled=self.label)

    def words(self) -> list[str]:
        """Return what a command that decides by it is told."""
        words = ["--policy", self.name]
        for key, value in _leaves(self.settings):
            text = json.dumps(value) if isinstance(value, list | bool) else value
            words += ["--set", f"{key}={text}"]
        return words

    def parameters(self) -> Parameters:
        """Return its parameters, validated.

        Raises
        ------
        InputError
            If there is no such policy or parameter, or a value is out of range.
        """
        return policy_parameters(self.name, self.settings)

    def build(self, context: PolicyContext) -> Policy:
        """Return the policy, freshly built; see `make_policy`.

        Raises
        ------
        InputError
            If there is no such policy or parameter, a value is out of range, or it needs to know
            jobs that the context does not tell.
        """
        return make_policy(self.name, context, self.settings)


def check_choices(choices: Sequence[PolicyChoice], place: str, mend: str) -> None:
    """Check that there are policies to compare, and that tables can tell them apart.

    Parameters
    ----------
    choices : sequence of PolicyChoice
        Who is compared.
    place : str
        Where they are named, for errors.
    mend : str
        How to name some.

    Raises
    ------
    InputError
        If there is none, or one stands twice.
    """
    if not choices:
        raise InputError(Fault(place, "names no policy", mend))
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(Fault(place, f"{label!r} is given twice"))


# ------------------------------------------------------------------ parameters as they are written


def setting(text: str, place: str = "--set") -> dict[str, Any]:
    """Return one ``KEY=VALUE`` pair as nested mappings.

    Parameters
    ----------
    text : str
        The pair.
    place : str
        Where it stands, for errors.

    Raises
    ------
    InputError
        If it has no value.
    """
    return nested([_pair(text, place)])


def _pair(text: str, place: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise InputError(Fault(place, f"{shown(text)} is no parameter", "write KEY=VALUE"))
    value = value.strip()
    if value[0] in "[{":
        try:
            return key.strip(), tomllib.loads(f"value = {value}")["value"]
        except RecursionError as error:
            raise InputError(Fault(f"{place} {shown(key)}", "is nested too deeply")) from error
        except ValueError as error:
            message = f"{shown(value)} is not TOML: {error}"
            raise InputError(Fault(f"{place} {shown(key)}", message)) from error
    return key.strip(), value


def merge(target: dict[str, Any], addition: Mapping[str, Any]) -> None:
    """Lay nested settings over others, in place."""
    for key, value in addition.items():
        inner = target.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            merge(inner, value)
        elif isinstance(value, Mapping):
            target[key] = {}
            merge(target[key], value)
        else:
            target[key] = value


def _leaves(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by their dotted names."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
