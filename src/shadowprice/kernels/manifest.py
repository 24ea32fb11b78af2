"""Which kernels each policy calls; read without loading the compiler."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final, NamedTuple


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


BAGS: Final = " bags"
"""Ends the name of what a policy needs beside, where jobs are bags of tasks."""

Signatures = Mapping[str, Sequence[str]]


@cache
def manifest() -> Mapping[str, Mapping[str, Signatures]]:
    """Return the signatures of kernels by kernel, for each policy those that it calls and inner."""
    text = resources.files("shadowprice.kernels").joinpath("manifest.json").read_text("utf-8")
    found: dict[str, dict[str, dict[str, list[str]]]] = json.loads(text)
    return found


def groups_of(policies: Iterable[str], *, bags: bool) -> list[str]:
    """Return the names of what policies need, with or without bags of tasks among the jobs."""
    names = list(policies)
    return names + [f"{name}{BAGS}" for name in names] if bags else names


def overloads_of(groups: Iterable[str]) -> list[Overload]:
    """Return what policies, or groups by other names, need, each once; unknown ones need nothing.

    What one of them calls itself and others by way of kernels is not inner.
    """
    known = [manifest()[group] for group in groups if group in manifest()]
    wanted = dict.fromkeys(pair for each in known for pair in _pairs(each["called"]))
    inner = dict.fromkeys(pair for each in known for pair in _pairs(each["inner"]))
    return [
        *(Overload(*pair) for pair in wanted),
        *(Overload(*pair, inner=True) for pair in inner if pair not in wanted),
    ]


def _pairs(signatures: Signatures) -> Iterable[tuple[str, str]]:
    return ((name, text) for name, texts in signatures.items() for text in texts)
