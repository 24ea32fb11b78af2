"""What a job really runs: ``run: {command, env, workdir, retries, grace, tolerates, ...}``."""

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
from shadowprice.core.wording import quote_for_display

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SHELL: Final = ("/bin/sh", "-c")


def _as_word(value: Any) -> Any:
    """Return an integer as text. Raise ValueError for values whose text isn't known."""
    if isinstance(value, float | bool):
        shown = str(value).lower()
        raise ValueError(f"write {shown} in quotes, so that it stays as it is written")
    return str(value) if isinstance(value, int) else value


def _without_null(value: str, what: str = "it") -> None:
    if "\0" in value:
        raise ValueError(f"{what} contains a null character")


CommandWord = Annotated[
    str,
    BeforeValidator(_as_word),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]


class RunSpec(Spec):
    """What a job really runs: every worker and every parameter server is one such process."""

    command: str | list[CommandWord]
    env: Annotated[dict[str, CommandWord], max_length(bounds.VARIABLES)] = Field(
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

    @field_validator("command", mode="before")
    @classmethod
    def _is_a_command(cls, value: Any) -> Any:
        # One message here, because pydantic would report an error for each member of the union.
        words = value if isinstance(value, list) else [value]
        as_validator(bounds.ARGUMENTS.checked)(len(words))
        for at, word in enumerate(words):
            if not isinstance(_as_word(word), str):
                raise ValueError(
                    "write a line for the shell, or a list of words: [python, train.py]"
                )
            _without_null(str(word), f"its word {at}" if at else "it")
        if not words or not str(words[0]).strip():
            raise ValueError("it is empty; write for example [python, train.py]")
        return value

    @field_validator("env")
    @classmethod
    def _is_settable(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(
                    f"{quote_for_display(name)} is no name of a variable; letters, digits and _"
                )
            if name in RESERVED_VARIABLES or name.startswith(RESERVED_PREFIXES):
                raise ValueError(
                    f"{quote_for_display(name)} is set by what runs the job; leave it out"
                )
            _without_null(text, quote_for_display(name))
        return value

    @field_validator("workdir")
    @classmethod
    def _is_absolute(cls, value: str | None) -> str | None:
        if value is not None:
            _without_null(value)
            if not value.startswith("/"):
                raise ValueError(
                    f"{quote_for_display(value)} is not absolute; begin with /, or leave it out "
                    "for a directory of the job's own"
                )
        return value

    @field_validator("user")
    @classmethod
    def _is_a_user(cls, value: str | None) -> str | None:
        if value is not None and not _USER.fullmatch(value):
            raise ValueError(f"{quote_for_display(value)} is no name of a user")
        return value

    @field_validator("image")
    @classmethod
    def _is_an_image(cls, value: str | None) -> str | None:
        if value is not None and not _IMAGE.fullmatch(value):
            raise ValueError(
                f"{quote_for_display(value)} is no image; write for example registry/name:tag"
            )
        return value

    @field_validator("upload")
    @classmethod
    def _is_a_digest(cls, value: str | None) -> str | None:
        if value is not None and not _DIGEST.fullmatch(value):
            raise ValueError(
                f"{quote_for_display(value)} is not a SHA-256 digest; submit --upload sends files"
            )
        return value

    @model_validator(mode="after")
    def _has_one_directory(self) -> Self:
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
