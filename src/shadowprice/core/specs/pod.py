"""Options for a job's pods on Kubernetes: ``run: {image, pod: {...}}``.

They cover a small part of a Kubernetes pod spec, under their own names. Node assignment, resource
requests, environment and termination are left out, because the scheduler controls them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from shadowprice.core import bounds
from shadowprice.core.amounts import Dimension
from shadowprice.core.specs.fields import AmountField, Spec, max_length, max_value
from shadowprice.core.wording import quote_for_display

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_RESERVED_PREFIX: Final = "shadowprice.io/"
_SOURCES: Final = ("claim", "config_map", "secret", "host_path", "scratch", "memory")

ShortTuple = max_length(bounds.POD_PARTS)
UnixId = Annotated[NonNegativeInt, max_value(bounds.USER_ID)]
Text = Annotated[str, max_length(bounds.NAME)]
ObjectName = Annotated[str, max_length(bounds.PATH)]


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


class TolerationSpec(Spec):
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


class VolumeSpec(Spec):
    """A volume that is mounted into all pods of a job, from one source."""

    path: Annotated[str, max_length(bounds.PATH)]
    claim: ObjectName | None = None
    config_map: ObjectName | None = None
    secret: ObjectName | None = None
    host_path: Annotated[str, max_length(bounds.PATH)] | None = None
    scratch: AmountField | None = None
    memory: AmountField | None = None
    part: Annotated[str, max_length(bounds.PATH)] | None = None
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


class PodSpec(Spec):
    """Pod options that a job may set."""

    tolerations: Annotated[list[TolerationSpec], ShortTuple] = Field(default_factory=list)
    volumes: Annotated[list[VolumeSpec], ShortTuple] = Field(default_factory=list)
    labels: Annotated[dict[str, str], ShortTuple] = Field(default_factory=dict)
    annotations: Annotated[dict[str, str], ShortTuple] = Field(default_factory=dict)
    service_account: ObjectName | None = None
    priority_class: ObjectName | None = None
    runtime_class: ObjectName | None = None
    pull: Literal["", "Always", "IfNotPresent", "Never"] = ""
    pull_secrets: Annotated[list[ObjectName], ShortTuple] = Field(default_factory=list)
    run_as_user: UnixId | None = None
    run_as_group: UnixId | None = None
    fs_group: UnixId | None = None
    shared_memory: AmountField | None = None
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
            if isinstance(value, Spec):
                given = sorted(value.model_fields_set)
                return {name: to_plain(getattr(value, name)) for name in given}
            if isinstance(value, list):
                return [to_plain(item) for item in value]
            if isinstance(value, dict):
                return dict(value)
            return getattr(value, "value", value)

        options: dict[str, Any] = to_plain(self)
        return {name: value for name, value in options.items() if value is not None}
