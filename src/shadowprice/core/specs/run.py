"""Model of a job's ``run`` key: the command and environment of its processes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from shadowprice.core import bounds
from shadowprice.core.amounts import Dimension, Duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.program import (
    DEFAULT_GRACE_SECONDS,
    RESERVED_PREFIXES,
    RESERVED_VARIABLES,
    Program,
)
from shadowprice.core.specs import fields
from shadowprice.core.wording import describe_type, quote_for_display

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_RESERVED_PREFIX: Final = "shadowprice.io/"
_SOURCES: Final = ("claim", "config_map", "secret", "host_path", "scratch", "memory")

MaxPodItems = fields.max_length(bounds.POD_PARTS)
UnixId = Annotated[NonNegativeInt, fields.max_value(bounds.USER_ID)]
Text = Annotated[str, fields.max_length(bounds.NAME)]
ObjectName = Annotated[str, fields.max_length(bounds.PATH)]


def _check_object_name(value: str | None) -> str | None:
    if value is not None and not _NAME.fullmatch(value):
        raise ValueError(
            f"{quote_for_display(value)} is not a valid object name; "
            "use lower-case letters, digits, - and ."
        )
    return value


def _bytes(value: Any) -> Any:
    if value is not None and (value.dimension is not Dimension.BYTES or not value.value):
        raise ValueError("write an amount of memory, for example 8 GiB")
    return value


def _absolute(value: str | None) -> str | None:
    if value is not None and (not value.startswith("/") or "\0" in value or ".." in value):
        raise ValueError(f"expected an absolute path without .., got {quote_for_display(value)}")
    return value


class TolerationSpec(fields.Spec):
    """A toleration of a taint, for all pods of a job."""

    key: Text = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: Text = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    @model_validator(mode="after")
    def _check_key_and_operator(self) -> TolerationSpec:
        if self.key and not _LABEL.fullmatch(self.key):
            raise ValueError(f"{quote_for_display(self.key)} is not a valid key of a taint")
        if not self.key and self.operator != "Exists":
            raise ValueError("name a key, or write operator: Exists to tolerate every taint")
        if self.value and self.operator == "Exists":
            raise ValueError("operator Exists takes no value")
        return self


class VolumeSpec(fields.Spec):
    """A volume that is mounted into all pods of a job, from one source."""

    path: Annotated[str, fields.max_length(bounds.PATH)]
    claim: ObjectName | None = None
    config_map: ObjectName | None = None
    secret: ObjectName | None = None
    host_path: Annotated[str, fields.max_length(bounds.PATH)] | None = None
    scratch: fields.AmountField | None = None
    memory: fields.AmountField | None = None
    part: Annotated[str, fields.max_length(bounds.PATH)] | None = None
    read_only: bool = False

    _paths = field_validator("path", "host_path")(_absolute)
    _names = field_validator("claim", "config_map", "secret")(_check_object_name)
    _amounts = field_validator("scratch", "memory")(_bytes)

    @field_validator("part")
    @classmethod
    def _is_relative_path(cls, value: str | None) -> str | None:
        if value is not None and (value.startswith("/") or ".." in value or "\0" in value):
            raise ValueError(
                f"{quote_for_display(value)} leads out of its volume; write a path inside it"
            )
        return value

    @model_validator(mode="after")
    def _has_one_source(self) -> VolumeSpec:
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"name one source: {', '.join(_SOURCES)}")
        return self


class PodSpec(fields.Spec):
    """Options for a job's pods on Kubernetes: ``run: {image, pod: {...}}``.

    Node assignment, resource requests, environment and termination aren't among them, because the
    scheduler controls these.
    """

    tolerations: Annotated[list[TolerationSpec], MaxPodItems] = Field(default_factory=list)
    volumes: Annotated[list[VolumeSpec], MaxPodItems] = Field(default_factory=list)
    labels: Annotated[dict[str, str], MaxPodItems] = Field(default_factory=dict)
    annotations: Annotated[dict[str, str], MaxPodItems] = Field(default_factory=dict)
    service_account: ObjectName | None = None
    priority_class: ObjectName | None = None
    runtime_class: ObjectName | None = None
    pull: Literal["", "Always", "IfNotPresent", "Never"] = ""
    pull_secrets: Annotated[list[ObjectName], MaxPodItems] = Field(default_factory=list)
    run_as_user: UnixId | None = None
    run_as_group: UnixId | None = None
    fs_group: UnixId | None = None
    shared_memory: fields.AmountField | None = None
    host_network: bool = False
    share_processes: bool = True

    _names = field_validator("service_account", "priority_class", "runtime_class")(
        _check_object_name
    )
    _amounts = field_validator("shared_memory")(_bytes)

    @field_validator("pull_secrets")
    @classmethod
    def _check_names(cls, value: list[str]) -> list[str]:
        for name in value:
            _check_object_name(name)
        return value

    @field_validator("labels", "annotations")
    @classmethod
    def _check_keys(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _LABEL.fullmatch(name):
                raise ValueError(
                    f"{quote_for_display(name)} is not a valid name of a label or an annotation"
                )
            if name.startswith(_RESERVED_PREFIX) or "kubernetes.io/" in name:
                raise ValueError(
                    f"{quote_for_display(name)} is reserved: the executor sets it; remove it"
                )
        return value

    @field_validator("labels")
    @classmethod
    def _check_values(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            if not _VALUE.fullmatch(text):
                raise ValueError(f"{quote_for_display(text)} is not a valid value of a label")
        return value

    @field_validator("volumes")
    @classmethod
    def _check_distinct_paths(cls, value: list[VolumeSpec]) -> list[VolumeSpec]:
        paths = [volume.path.rstrip("/") for volume in value]
        for path in paths:
            if paths.count(path) > 1:
                raise ValueError(f"two volumes have the path {quote_for_display(path)}")
        return value

    def plain(self) -> dict[str, Any]:
        """Return the options that were given as plain values, with amounts in bytes."""

        def to_plain(value: Any) -> Any:
            if isinstance(value, fields.Spec):
                given = sorted(value.model_fields_set)
                return {name: to_plain(getattr(value, name)) for name in given}
            if isinstance(value, list):
                return [to_plain(item) for item in value]
            if isinstance(value, dict):
                return dict(value)
            return getattr(value, "value", value)

        options: dict[str, Any] = to_plain(self)
        return {name: value for name, value in options.items() if value is not None}


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SHELL: Final = ("/bin/sh", "-c")


def _as_argument(value: Any) -> Any:
    """Return an integer as text; refuse null, floats and booleans, whose spelling YAML changes."""
    if value is None:
        raise ValueError("expected text, got null; quote it if it is text")
    if isinstance(value, float | bool):
        shown = str(value).lower()
        raise ValueError(f"expected text, got {shown}; quote it, because YAML changes its spelling")
    return str(value) if isinstance(value, int) else value


def _check_no_null(value: str, what: str = "it") -> None:
    if "\0" in value:
        raise ValueError(f"{what} contains a null character")


def _matching(pattern: re.Pattern[str], problem: str) -> AfterValidator:
    """Return an annotation that refuses a text unless it matches a pattern."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{quote_for_display(value)} {problem}")
        return value

    return AfterValidator(check)


CommandArgument = Annotated[
    str,
    BeforeValidator(_as_argument),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]


class RunSpec(fields.Spec):
    """Command of a job: every worker and every parameter server is one process that runs it."""

    command: str | list[CommandArgument]
    env: Annotated[dict[str, CommandArgument], fields.max_length(bounds.VARIABLES)] = Field(
        default_factory=dict, repr=False
    )
    workdir: Annotated[str, fields.max_length(bounds.PATH)] | None = None
    retries: Annotated[NonNegativeInt, fields.max_value(bounds.RETRIES)] = 0
    grace: fields.DurationField | None = None
    checkpoints: bool | None = None
    tolerates: Literal["nothing", "workers"] = "nothing"
    user: Annotated[str, _matching(_USER, "is not a valid user name")] | None = None
    image: (
        Annotated[
            str,
            fields.max_length(bounds.PATH),
            _matching(_IMAGE, "is not a valid image; write for example registry/name:tag"),
        ]
        | None
    ) = None
    pod: PodSpec | None = None
    upload: (
        Annotated[
            str,
            _matching(_DIGEST, "is not a SHA-256 digest; use `submit --upload` to upload files"),
        ]
        | None
    ) = None
    from_options: bool = False  # `submit` set the job's keys by options, so advice names these

    @field_validator("command", mode="before")
    @classmethod
    def _check_command(cls, value: Any) -> Any:
        # Types are checked here, because pydantic would report an error per member of the union.
        arguments = value if isinstance(value, list) else [value]
        fields.as_validator(bounds.ARGUMENTS.checked)(len(arguments))
        for index, argument in enumerate(arguments):
            if not isinstance(_as_argument(argument), str):
                raise ValueError(
                    "expected a shell command or a list of arguments, got "
                    f"{describe_type(argument)}; write for example [python, train.py]"
                )
            _check_no_null(str(argument), f"argument {index}" if index else "it")
        if not arguments or not str(arguments[0]).strip():
            raise ValueError("is empty; write for example [python, train.py]")
        return value if isinstance(value, list) else _as_argument(value)

    @field_validator("env")
    @classmethod
    def _check_env(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(
                    f"{quote_for_display(name)} is not a valid variable name; "
                    "use letters, digits and _"
                )
            if name in RESERVED_VARIABLES or name.startswith(RESERVED_PREFIXES):
                raise ValueError(
                    f"{quote_for_display(name)} is reserved: the executor sets it; remove it"
                )
            _check_no_null(text, quote_for_display(name))
        return value

    @field_validator("workdir")
    @classmethod
    def _check_workdir(cls, value: str | None) -> str | None:
        if value is not None:
            _check_no_null(value)
            if not value.startswith("/"):
                raise ValueError(
                    f"{quote_for_display(value)} is not an absolute path; start it with /, or omit "
                    "it to use the job's own directory"
                )
        return value

    @model_validator(mode="after")
    def _check_one_directory(self) -> Self:
        if self.upload is not None and self.workdir is not None:
            raise ValueError("workdir has no effect with upload; remove one of them")
        return self

    def resolve(self, slot_seconds: Fraction) -> Program:
        """Return the program for executors; raise InputError for an invalid grace period."""
        grace = self.grace or Duration(seconds=Fraction(str(DEFAULT_GRACE_SECONDS)))
        seconds = float(grace.in_seconds(slot_seconds))
        bounds.GRACE.check(math.ceil(seconds), "run.grace")
        if seconds < 0:
            raise InputError(Fault("run.grace", "is negative", "write for example 30s"))
        words = self.command
        return Program(
            command=(*_SHELL, words) if isinstance(words, str) else tuple(words),
            environment=dict(self.env),
            directory=self.workdir or "",
            retries=self.retries,
            grace=seconds,
            tolerates_workers=self.tolerates == "workers",
            user=self.user or "",
            image=self.image or "",
            pod=self.pod.plain() if self.pod is not None else {},
        )
