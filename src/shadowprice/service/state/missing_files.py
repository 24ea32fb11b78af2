"""Diagnostics for files of a command that are missing where the job runs, from its log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from shadowprice.core.wording import quote_for_display

_NOT_THERE: Final = re.compile(r"No such file|[Cc]an(?:no|')t open|: not found$")
_NO_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")
_FEW: Final = 200
"""Maximum number of words of a command that are checked."""


def explain_missing_file(run: Mapping[str, Any], reason: str, tail: Sequence[str]) -> str:
    """Return which file or module of a command was missing, with a hint; empty if none.

    Error messages of interpreters differ, but contain the file's name: a word of the command that
    isn't an absolute path. If a message names the searched folder, the result does too.

    ``run`` is that of the job file, ``reason`` explains the job's end, and ``tail`` holds the last
    lines of its log.
    """
    argv, workdir = _words(run.get("command", "")), run.get("workdir")
    lines = [line.rstrip() for line in (reason, *tail)]
    for line in filter(_NOT_THERE.search, lines):
        named = [(match, word) for word in _relative(argv) if (match := _named(word, line))]
        if not named:
            continue
        # The interpreter's name comes first: "bash: train.sh: No such file or directory".
        match, word = max(named, key=lambda hit: hit[0].end())
        if word == argv[0] and "/" not in word:
            return f"{quote_for_display(word)} is in no folder of PATH; write its absolute path"
        return _told(f"{quote_for_display(word)} is not in", match[1] or "", workdir)
    for option, module in pairwise(argv):
        if option != "-m" or not module:
            continue
        modules = {hit[1] for line in lines if (hit := _NO_MODULE.search(line))}
        if modules & {module, module.partition(".")[0]}:
            return _told(f"{quote_for_display(module)} is not installed, and not in", "", workdir)
    return ""


def _words(command: object) -> list[str]:
    """Return the words of a command; arguments with spaces are split like shell commands."""
    words = [command] if isinstance(command, str) else list(command or ())  # type: ignore[call-overload]  # a list
    argv: list[str] = []
    for word in map(str, words[:_FEW]):
        try:
            argv += shlex.split(word) if " " in word or len(words) == 1 else [word]
        except ValueError:
            argv += word.split()
    return argv[:_FEW]


def _relative(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, and values of options, that may be relative paths."""
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") else word
        if value.removeprefix("./") and not value.startswith(("/", "-")):
            yield value


def _named(word: str, line: str) -> re.Match[str] | None:
    """Return the match of a file's name in a line; group 1 is its folder, if given."""
    name = re.escape(word.removeprefix("./"))
    return re.search(rf"(?:^|[\s'\"`])(/[^'\"`:]*/|\./)?{name}(?=['\"`:]|$)", line)


def _told(what: str, named: str, workdir: object) -> str:
    folder = named.removeprefix("./").rstrip("/") or workdir or "the folder of its own"
    hint = "state run.workdir, or write an absolute path"
    if workdir:
        hint = "put it there, or write an absolute path or another run.workdir"
    return f"{what} {folder}, where the job runs; {hint}"
