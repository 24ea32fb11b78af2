"""Files of a command that are not where the job runs: what its log says of them, with the mend."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from shadowprice.core.wording import shown

_NOT_THERE: Final = re.compile(r"No such file|[Cc]an(?:no|')t open|: not found$")
_NO_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")
_FEW: Final = 200
"""Words of a command that are looked at."""


def missing(run: Mapping[str, Any], reason: str, tail: Sequence[str]) -> str:
    """Return what of a command was not found where the job ran, and what mends it; else nothing.

    Interpreters say it in many ways, but name the file: a word of the command that is no absolute
    path. Where they name the folder that they looked into, so does this.

    Parameters
    ----------
    run : mapping
        ``run`` of the job: its `command`, and its `workdir` where it states one.
    reason : str
        Why it ended.
    tail : sequence of str
        The last lines of its log.
    """
    words, workdir = _words(run.get("command", "")), run.get("workdir")
    lines = [line.rstrip() for line in (reason, *tail)]
    for line in filter(_NOT_THERE.search, lines):
        named = [(found, word) for word in _relative(words) if (found := _named(word, line))]
        if not named:
            continue
        # Who says it names itself first: "bash: train.sh: No such file or directory".
        found, word = max(named, key=lambda one: one[0].end())
        if word == words[0] and "/" not in word:
            return f"{shown(word)} is in no folder of PATH; write its absolute path"
        return _told(f"{shown(word)} is not in", found[1] or "", workdir)
    for option, module in pairwise(words):
        if option != "-m" or not module:
            continue
        lacking = {one[1] for line in lines if (one := _NO_MODULE.search(line))}
        if lacking & {module, module.partition(".")[0]}:
            return _told(f"{shown(module)} is not installed, and not in", "", workdir)
    return ""


def _words(command: object) -> list[str]:
    """Return the words of a command, and those of the lines for a shell that are among them."""
    words = [command] if isinstance(command, str) else list(command or ())  # type: ignore[call-overload]  # a list
    found: list[str] = []
    for word in map(str, words[:_FEW]):
        try:
            found += shlex.split(word) if " " in word or len(words) == 1 else [word]
        except ValueError:
            found += word.split()
    return found[:_FEW]


def _relative(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, and the values of options, that may name a file by a relative path."""
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") else word
        if value.removeprefix("./") and not value.startswith(("/", "-")):
            yield value


def _named(word: str, line: str) -> re.Match[str] | None:
    """Return where a line names a file, with its folder where it does."""
    name = re.escape(word.removeprefix("./"))
    return re.search(rf"(?:^|[\s'\"`])(/[^'\"`:]*/|\./)?{name}(?=['\"`:]|$)", line)


def _told(what: str, named: str, workdir: object) -> str:
    folder = named.removeprefix("./").rstrip("/") or workdir or "the folder of its own"
    mend = "state run.workdir, or write an absolute path"
    if workdir:
        mend = "put it there, or write an absolute path or another run.workdir"
    return f"{what} {folder}, where the job runs; {mend}"
