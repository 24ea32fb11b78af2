"""A YAML loader that never changes the value of a word: ``0022``, ``12:30`` and dates are text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import yaml

from shadowprice.core.wording import quote_for_display

_PREFIX: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_PREFIX}merge"
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
_FLOAT: Final = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_BOOLEAN: Final = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL: Final = re.compile(r"~|null|Null|NULL|")


class WrittenInt(int):
    """An integer that isn't written as `str` prints it: ``80_000``, ``+5``."""

    written: str


class YamlLoader(yaml.CSafeLoader):
    """Loader whose values are JSON's: text, decimal numbers, booleans, null, lists and mappings.

    YAML 1.1 also reads octal, hexadecimal, binary and base-60 numbers, dates, and words such as
    ``no``. They stay text here, so a field of another type refuses them. A repeated key is an
    error.
    """

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # typed so by its stubs
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Build a mapping; raise ConstructorError for a repeated key."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            # Merged keys are defaults, which the mapping's own keys may override.
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float) and key in seen:
                message = f"the key {quote_for_display(key)} is repeated"
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            seen.add(key if isinstance(key, str | int | float) else repr(key))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        """Build an integer; raise ConstructorError if a tag declares other text an integer."""
        text = self.construct_scalar(node)
        if not _INTEGER.fullmatch(text):
            message = f"expected a decimal integer, got {quote_for_display(text)}"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        value = int(text)
        if str(value) == text:
            return value
        number = WrittenInt(value)
        number.written = text
        return number

    def construct_undefined(self, node: Any) -> Any:
        """Raise ConstructorError for a tag whose values aren't JSON's."""
        tag = str(node.tag).replace(_PREFIX, "!!", 1)
        message = f"the tag {quote_for_display(tag)} is not supported"
        raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _configure(loader: type[YamlLoader]) -> None:
    for name, pattern, first in (
        ("bool", _BOOLEAN, "tTfF"),
        ("float", _FLOAT, "-+0123456789."),
        ("int", _INTEGER, "-+0123456789"),
        ("merge", re.compile("<<"), "<"),
        ("null", _NULL, ["~", "n", "N", ""]),
    ):
        exact = re.compile(rf"(?:{pattern.pattern})\Z")
        loader.add_implicit_resolver(f"{_PREFIX}{name}", exact, list(first))
    names = {name: name for name in ("null", "bool", "int", "float", "str", "seq", "map")}
    for name, kind in {**names, "merge": "str"}.items():  # << that isn't a key is text
        loader.add_constructor(f"{_PREFIX}{name}", getattr(loader, f"construct_yaml_{kind}"))
    loader.add_constructor(None, loader.construct_undefined)


_configure(YamlLoader)
for _dumper in (yaml.SafeDumper, yaml.CSafeDumper):
    _dumper.add_representer(WrittenInt, _dumper.represent_int)


def parse_yaml(text: str | bytes) -> Any:
    """Parse a YAML document; see `YamlLoader`. Raises YAMLError, ValueError or RecursionError."""
    try:
        return yaml.load(text, Loader=YamlLoader)
    except (LookupError, TypeError, ArithmeticError, AttributeError) as error:
        # Tags such as !!float and !!bool raise these for other values.
        raise ValueError(str(error)) from error


def keep_written_words(record: Any) -> Any:
    """Return a job's record with integers as written in ``run.command``, ``run.env`` and labels.

    They are words of a program: ``--id 1_000`` stays ``1_000``.
    """
    if not isinstance(record, Mapping):
        return record
    if isinstance(record.get("labels"), Mapping):
        record = {**record, "labels": _as_written(record["labels"])}
    run = record.get("run")
    if not isinstance(run, Mapping):
        return record
    words = {key: _as_written(run[key]) for key in ("command", "env") if key in run}
    return {**record, "run": {**run, **words}}


def _as_written(value: Any) -> Any:
    if isinstance(value, WrittenInt):
        return value.written
    if isinstance(value, list):
        return [_as_written(item) for item in value]
    if isinstance(value, Mapping):
        return {_as_written(key): _as_written(item) for key, item in value.items()}
    return value
