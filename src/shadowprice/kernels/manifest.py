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
    """

    name: str
    signature: str


@cache
def manifest() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the signatures of the kernels that each policy calls, by policy and kernel."""
    text = resources.files("shadowprice.kernels").joinpath("manifest.json").read_text("utf-8")
    found: dict[str, dict[str, list[str]]] = json.loads(text)
    return found


def overloads_of(policies: Iterable[str]) -> list[Overload]:
    """Return what policies need, each once; unknown names need nothing."""
    wanted: dict[Overload, None] = {}
    for policy in policies:
        for name, signatures in manifest().get(policy, {}).items():
            wanted.update(dict.fromkeys(Overload(name, text) for text in signatures))
    return list(wanted)
