"""Which kernels each policy calls; read without loading the compiler."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple


class Overload(NamedTuple):
    """A kernel for arguments of certain types.

    Attributes
    ----------
    name : str
        ``module.function`` in `shadowprice.kernels`.
    signature : str
        Its argument types, as `warming.described` writes them.
    inner : bool
        Whether only other kernels call it.
    """

    name: str
    signature: str
    inner: bool = False


Signatures = Mapping[str, Sequence[str]]


@cache
def manifest() -> Mapping[str, Mapping[str, Signatures]]:
    """Return the signatures of kernels by kernel, for each policy those that it calls and inner."""
    text = resources.files("shadowprice.kernels").joinpath("manifest.json").read_text("utf-8")
    found: dict[str, dict[str, dict[str, list[str]]]] = json.loads(text)
    return found


def overloads_of(policies: Iterable[str]) -> list[Overload]:
    """Return what policies need, each once; unknown names need nothing.

    What one of them calls itself and others by way of kernels is not inner.
    """
    known = [manifest()[policy] for policy in policies if policy in manifest()]
    wanted = dict.fromkeys(pair for each in known for pair in _pairs(each["called"]))
    inner = dict.fromkeys(pair for each in known for pair in _pairs(each["inner"]))
    return [
        *(Overload(*pair) for pair in wanted),
        *(Overload(*pair, inner=True) for pair in inner if pair not in wanted),
    ]


def _pairs(signatures: Signatures) -> Iterable[tuple[str, str]]:
    return ((name, text) for name, texts in signatures.items() for text in texts)
