"""A policy with its parameters, as a user chooses it: parsing, labels in tables, building."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.core.wording import parse_error_text, quote_for_display
from shadowprice.extensions import FileExtension, is_file_reference
from shadowprice.policies import registry


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy and the parameters that a user set for it, before the policy is built.

    The policy is a registered name, or the file of a user's policy. Only the class methods read
    files. So a name that reaches the constructor never causes a file to be executed.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that were set, without defaults; dotted names are nested mappings."""
    titled: str = ""  # label in tables; empty: the name and the parameters
    file: FileExtension | None = None
    """File of a policy that isn't registered; `name` is then the file's label."""

    @classmethod
    def named(
        cls,
        text: str,
        settings: Mapping[str, Any] | None = None,
        location: str = "--policy",
    ) -> PolicyChoice:
        """Build a choice from a registered name or ``./file.py:NAME``.

        Raises `InputError` if the name is unknown, or the file can't be loaded or doesn't define
        the policy.
        """
        if not is_file_reference(text):
            return cls(registry.policy_info(text).name, settings or {})
        file = FileExtension.read(text, location)
        return cls(registry.extension_info(file).name, settings or {}, file=file)

    @classmethod
    def parse(cls, text: str) -> PolicyChoice:
        """Parse a policy with its parameters after a ``?``: ``oasis?preset=paper&split=half``.

        Raises `InputError` as `named`, and if a parameter has no value.
        """
        name, _, rest = text.partition("?")
        chosen = cls.named(name)
        bounds.SETTINGS.check(rest.count("&") + 1, f"--policy {quote_for_display(chosen.name)}")
        pairs = [pair for pair in rest.split("&") if pair]
        settings: dict[str, Any] = {}
        for pair in pairs:
            deep_merge(settings, parse_setting(pair, f"--policy {chosen.name}"))
        return replace(chosen, settings=settings, titled=" ".join((chosen.name, *pairs)))

    @classmethod
    def of_run(cls, info: Mapping[str, Any]) -> PolicyChoice:
        """Build the choice from a run's ``run.json``; `InputError` if its file has changed."""
        settings, origin = info["settings"], info.get("policy_origin") or {}
        if "file" not in origin:
            return cls(info["policy"].split()[0], settings)
        reference = FileExtension(origin["file"], origin["object"], b"").reference
        file = FileExtension.read(reference, "policy")
        if file.sha256 != origin["sha256"]:
            raise InputError(Fault(file.path, "has changed since the run", "run it again"))
        return cls(registry.extension_info(file).name, settings, file=file)

    @property
    def info(self) -> registry.PolicyInfo:
        """Declaration of the policy; raises `InputError` if the name is unknown."""
        return (
            registry.policy_info(self.name)
            if self.file is None
            else registry.extension_info(self.file)
        )

    @property
    def label(self) -> str:
        """Label in tables, and the name of the policy's folder."""
        pairs = (f"{key}={value}" for key, value in _flatten_settings(self.settings))
        return self.titled or " ".join((self.name, *pairs))

    @property
    def origin(self) -> Mapping[str, object] | None:
        """Record of the policy's source and digest; None if it is part of this package."""
        extension = self.info.extension
        return None if extension is None else extension.record()

    def merged_over(self, settings: Mapping[str, Any]) -> PolicyChoice:
        """Return this choice with its parameters merged over ``settings``, and the same label."""
        merged = dict(deepcopy(settings))
        deep_merge(merged, self.settings)
        return replace(self, settings=merged, titled=self.label)

    def with_file_in(self, folder: Path) -> PolicyChoice:
        """Return this choice with its file, if any, copied into a folder."""
        return self if self.file is None else replace(self, file=self.file.written_to(folder))

    def argv(self) -> list[str]:
        """Return the command-line options that select this policy and its parameters."""
        options = ["--policy", self.name if self.file is None else self.file.reference]
        for key, value in _flatten_settings(self.settings):
            text = json.dumps(value) if isinstance(value, list | bool) else value
            options += ["--set", f"{key}={text}"]
        return options

    def parameters(self) -> registry.Parameters:
        """Return the validated parameters; `policy_parameters` raises `InputError`."""
        return registry.policy_parameters(self.info, self.settings)

    def build(self, context: PolicyContext) -> Policy:
        """Build the policy; `make_policy` raises `InputError`."""
        return registry.make_policy(self.info, context, self.settings)


def check_choices(choices: Sequence[PolicyChoice], location: str, hint: str) -> None:
    """Raise `InputError` if there are no choices (with the hint), or two have the same label."""
    if not choices:
        raise InputError(Fault(location, "names no policy", hint))
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(Fault(location, f"{label!r} is repeated"))


# ------------------------------------------------------------------ parameters as text


def parse_setting(text: str, location: str = "--set") -> dict[str, Any]:
    """Parse one ``KEY=VALUE`` pair into nested mappings; raise `InputError` if it has no value."""
    key, equals, text_value = text.partition("=")
    value: Any = text_value.strip()
    if not equals or not key.strip() or not value:
        raise InputError(
            Fault(location, f"{quote_for_display(text)} is not a parameter", "write KEY=VALUE")
        )
    if value[0] in "[{":  # other values stay text, which the parameter's model converts
        try:
            value = tomllib.loads(f"value = {value}")["value"]
        except RecursionError as error:
            raise InputError(
                Fault(f"{location} {quote_for_display(key)}", "is nested too deeply")
            ) from error
        except ValueError as error:
            message = f"{quote_for_display(value)} is not TOML: {parse_error_text(error)}"
            raise InputError(Fault(f"{location} {quote_for_display(key)}", message)) from error
    return registry.nest_dotted_keys([(key.strip(), value)])


def deep_merge(target: dict[str, Any], addition: Mapping[str, Any]) -> None:
    """Merge nested settings into ``target``, in place; values of ``addition`` win."""
    for key, value in addition.items():
        inner = target.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            deep_merge(inner, value)
        elif isinstance(value, Mapping):
            target[key] = {}
            deep_merge(target[key], value)
        else:
            target[key] = value


def _flatten_settings(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten_settings(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
