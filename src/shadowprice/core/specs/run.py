"""Model of a job's ``run`` key: the command and environment of its processes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from shadowprice.core import bounds
from shadowprice.core.amounts import Duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.program import (
    DEFAULT_GRACE_SECONDS,
    RESERVED_PREFIXES,
    RESERVED_VARIABLES,
    Program,
)
from shadowprice.core.specs.fields import DurationField, Spec, as_validator, max_length, max_value
from shadowprice.core.specs.pod import PodSpec
from shadowprice.core.wording import describe_type, quote_for_display

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SHELL: Final = ("/bin/sh", "-c")


def _as_argument(value: Any) -> Any:
    """Return an integer as text. Raise ValueError for a float or boolean.

    YAML doesn't keep their spelling, such as ``1.10`` or ``yes``.
    """
    if value is None:
        raise ValueError("expected text, got null; quote it if it is text")
    if isinstance(value, float | bool):
        shown = str(value).lower()
        raise ValueError(f"expected text, got {shown}; quote it, because YAML changes its spelling")
    return str(value) if isinstance(value, int) else value


def _check_no_null(value: str, what: str = "it") -> None:
    """Raise ValueError if a text contains a null character."""
    if "\0" in value:
        raise ValueError(f"{what} contains a null character")


CommandArgument = Annotated[
    str,
    BeforeValidator(_as_argument),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]


class RunSpec(Spec):
    """Command of a job: every worker and every parameter server is one process that runs it."""

    command: str | list[CommandArgument]
    env: Annotated[dict[str, CommandArgument], max_length(bounds.VARIABLES)] = Field(
        default_factory=dict, repr=False
    )
    workdir: Annotated[str, max_length(bounds.PATH)] | None = None
    retries: Annotated[NonNegativeInt, max_value(bounds.RETRIES)] = 0
    grace: DurationField | None = None
    checkpoints: bool | None = None
    tolerates: Literal["nothing", "workers"] = "nothing"
    user: str | None = None
    image: Annotated[str, max_length(bounds.PATH)] | None = None
    pod: PodSpec | None = None
    upload: str | None = None
    from_options: bool = False  # `submit` set the job's keys by options, so advice names these

    @field_validator("command", mode="before")
    @classmethod
    def _check_command(cls, value: Any) -> Any:
        # One message here, because pydantic would report an error for each member of the union.
        arguments = value if isinstance(value, list) else [value]
        as_validator(bounds.ARGUMENTS.checked)(len(arguments))
        for index, argument in enumerate(arguments):
            if not isinstance(_as_argument(argument), str):
                raise ValueError(
                    "expected a shell command or a list of arguments, got "
                    f"{describe_type(argument)}; write for example [python, train.py]"
                )
            _check_no_null(str(argument), f"argument {index}" if index else "it")
        if not arguments or not str(arguments[0]).strip():
            raise ValueError("it is empty; write for example [python, train.py]")
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

    @field_validator("user")
    @classmethod
    def _check_user(cls, value: str | None) -> str | None:
        if value is not None and not _USER.fullmatch(value):
            raise ValueError(f"{quote_for_display(value)} is not a valid user name")
        return value

    @field_validator("image")
    @classmethod
    def _check_image(cls, value: str | None) -> str | None:
        if value is not None and not _IMAGE.fullmatch(value):
            raise ValueError(
                f"{quote_for_display(value)} is not a valid image; "
                "write for example registry/name:tag"
            )
        return value

    @field_validator("upload")
    @classmethod
    def _check_upload(cls, value: str | None) -> str | None:
        if value is not None and not _DIGEST.fullmatch(value):
            raise ValueError(
                f"{quote_for_display(value)} is not a SHA-256 digest; use `submit --upload` to "
                "upload files"
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
            raise InputError(Fault("run.grace", "it is negative", "write for example 30s"))
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
