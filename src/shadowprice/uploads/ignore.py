"""Rules of ``.gitignore`` files: which files of a directory aren't sent."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IGNORE_FILES: Final = (".gitignore", ".shadowpriceignore")
"""Files with rules, in order of precedence; they hold for their directory and below."""

EXCLUDED_NAMES: Final = frozenset({".git", ".venv", "venv", "__pycache__"})
"""Names that are always excluded, as Ray does; rules such as ``!*/`` would include them."""

_CLASSES: Final = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "\\x21-\\x7e",
    "lower": "a-z",
    "print": "\\x20-\\x7e",
    "punct": "\\x21-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7e",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """One pattern; ``whole`` if it applies to the path below its directory instead of the name."""

    pattern: re.Pattern[str]
    excludes: bool
    only_directories: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that hold in a directory: those of its own files, and of the directories above.

    ``prefix`` is the path of the top below its git repository; empty if the top is the repository,
    or in none. ``levels`` are directories below the repository (empty for the repository itself)
    with their rules, from the repository downwards.
    """

    prefix: str = ""
    levels: tuple[tuple[str, tuple[_Rule, ...]], ...] = ()

    @classmethod
    def above(cls, top: Path) -> IgnoreRules:
        """Return the rules that a top gets from the git repository that it is in.

        They are those of ``.git/info/exclude`` and of the directories from the repository down to
        the top, without the top's own. ``top`` is absolute, without symbolic links.
        """
        for repository in (top, *top.parents):
            if os.path.lexists(repository / ".git"):
                break
        else:
            return cls()
        prefix = top.relative_to(repository).parts
        rules = cls("/".join(prefix))._with("", [_git_directory(repository) / "info" / "exclude"])
        for depth in range(len(prefix)):
            rules = rules._with_files_of(repository.joinpath(*prefix[:depth]), prefix[:depth])
        return rules

    def within(self, folder: Path, relative: str) -> IgnoreRules:
        """Return the rules in a directory, whose path below the top is ``relative``."""
        return self._with_files_of(folder, [part for part in (self.prefix, relative) if part])

    def _with_files_of(self, folder: Path, parts: Sequence[str]) -> IgnoreRules:
        return self._with("/".join(parts), [folder / name for name in IGNORE_FILES])

    def _with(self, folder: str, files: Iterable[Path]) -> IgnoreRules:
        lines = [line for file in files for line in _lines(file)]
        return IgnoreRules(self.prefix, (*self.levels, (folder, _parse(lines)))) if lines else self

    def excludes(self, path: str, *, is_directory: bool) -> bool:
        """Return whether a path below the top is excluded; its directories aren't."""
        name = path.rpartition("/")[2]
        if name in EXCLUDED_NAMES:
            return True
        full = f"{self.prefix}/{path}" if self.prefix else path
        for folder, rules in reversed(self.levels):
            below = full[len(folder) + 1 :] if folder else full
            for rule in reversed(rules):
                if rule.only_directories and not is_directory:
                    continue
                if rule.pattern.fullmatch(below if rule.whole else name):
                    return rule.excludes
        return False


def _git_directory(repository: Path) -> Path:
    """Return the directory with a repository's data; worktrees and submodules have it elsewhere."""
    directory = repository / ".git"
    if directory.is_file():
        text = os.fsdecode(directory.read_bytes()).removeprefix("gitdir:").strip()
        directory = repository / text
        common = directory / "commondir"
        if common.is_file():
            directory /= os.fsdecode(common.read_bytes()).strip()
    return directory


def _lines(file: Path) -> list[str]:
    """Return the lines of a regular file; none if there is no such file."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return []
    except (FileNotFoundError, NotADirectoryError):
        return []
    content = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    return [os.fsdecode(line).removesuffix("\r") for line in content.split(b"\n")]


def _parse(lines: Iterable[str]) -> tuple[_Rule, ...]:
    rules = []
    for line in lines:
        text = re.sub(r"(?<!\\) +$", "", line)
        if not text or text.startswith("#"):
            continue
        excludes = not text.startswith("!")
        text = text if excludes else text[1:]
        only_directories = text.endswith("/")
        text = text.removesuffix("/")
        whole = "/" in text
        expression = _expression(text.removeprefix("/"))
        if text and expression is not None:
            rules.append(_Rule(expression, excludes, only_directories, whole))
    return tuple(rules)


def _expression(glob: str) -> re.Pattern[str] | None:
    """Return the regular expression of a pattern; None for one that matches nothing."""
    parts: list[str] = []
    at = 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*":
            end = at
            while glob[end : end + 1] == "*":
                end += 1
            stars, at, before = end - at + 1, end, glob[at - 2 : at - 1]
            is_component = stars > 1 and before in {"", "/"} and glob[at : at + 1] in {"", "/"}
            if is_component and at < len(glob):
                parts.append("(?:.*/)?")
                at += 1
            else:
                parts.append(".*" if is_component else "[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[":
            bracket = _bracket(glob, at)
            if bracket is None:
                return None
            expression, at = bracket
            parts.append(expression)
        elif character == "\\":
            if at == len(glob):
                return None
            parts.append(re.escape(glob[at]))
            at += 1
        else:
            parts.append(re.escape(character))
    return re.compile("".join(parts), re.DOTALL)


def _bracket(glob: str, start: int) -> tuple[str, int] | None:
    """Return the expression of ``[...]`` and the index after it; None if it has no end."""
    at = start
    negated = glob[at : at + 1] in {"!", "^"}
    at += negated
    members: list[str] = []
    first = at
    while True:
        character = glob[at : at + 1]
        if not character:
            return None
        if character == "]" and at > first:
            break
        named = re.compile(r"\[:(\w*):\]").match(glob, at)
        if named is not None:
            if named[1] not in _CLASSES:
                return None
            members.append(_CLASSES[named[1]])
            at = named.end()
            continue
        low, at = _literal(glob, at)
        if glob[at : at + 1] == "-" and glob[at + 1 : at + 2] not in {"", "]"}:
            high, at = _literal(glob, at + 1)
            if low <= high:  # an empty range matches nothing
                members.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            members.append(re.escape(low))
    inner = "".join(members)
    if negated:
        return f"(?!/)[^{inner}]" if inner else "[^/]", at + 1
    return f"(?!/)[{inner}]" if inner else "(?!)", at + 1


def _literal(glob: str, at: int) -> tuple[str, int]:
    """Return the character at an index, escaped or not, and the index after it."""
    if glob[at] == "\\" and at + 1 < len(glob):
        at += 1
    return glob[at], at + 1
