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
"""Files with rules for their directory and below; rules of the later file take precedence."""

EXCLUDED_NAMES: Final = frozenset({".git", ".venv", "venv", "__pycache__"})
"""Names that are always excluded, as in Ray, because rules such as ``!*/`` would include them."""

# Character classes of globs, such as [:alpha:], as the inside of a bracket expression.
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
    pattern: re.Pattern[str]
    excludes: bool  # false for a pattern with ``!``, which includes paths again
    only_directories: bool
    matches_path: bool  # the path below the rule's directory, instead of only the name


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that hold in a directory: those of its own files, and of the directories above.

    The *top* is the directory to send. ``prefix`` is its path below its git repository; empty if
    the top is the repository, or in none. ``levels`` are pairs of a directory and its rules, from
    the repository downwards. The directory is a path below the repository.
    """

    prefix: str = ""
    levels: tuple[tuple[str, tuple[_Rule, ...]], ...] = ()

    @classmethod
    def above(cls, top: Path) -> IgnoreRules:
        """Return the rules that hold for a top because of the git repository that contains it.

        They come from ``.git/info/exclude`` and from the directories above the top, up to the
        repository. ``top`` is absolute, without symbolic links.
        """
        for repository in (top, *top.parents):
            if os.path.lexists(repository / ".git"):
                break
        else:
            return cls()
        prefix = top.relative_to(repository).parts
        rules = cls("/".join(prefix))._with_level(
            "", [_git_directory(repository) / "info" / "exclude"]
        )
        for depth in range(len(prefix)):
            rules = rules._with_rules_in(repository.joinpath(*prefix[:depth]), prefix[:depth])
        return rules

    def within(self, folder: Path, relative: str) -> IgnoreRules:
        """Return the rules in a directory, whose path below the top is ``relative``."""
        return self._with_rules_in(folder, [part for part in (self.prefix, relative) if part])

    def _with_rules_in(self, folder: Path, parts: Sequence[str]) -> IgnoreRules:
        return self._with_level("/".join(parts), [folder / name for name in IGNORE_FILES])

    def _with_level(self, folder: str, files: Iterable[Path]) -> IgnoreRules:
        lines = [line for file in files for line in _lines(file)]
        return IgnoreRules(self.prefix, (*self.levels, (folder, _parse(lines)))) if lines else self

    def excludes(self, path: str, *, is_directory: bool) -> bool:
        """Return whether a path below the top is excluded, if its directories aren't."""
        name = path.rpartition("/")[2]
        if name in EXCLUDED_NAMES:
            return True
        full = f"{self.prefix}/{path}" if self.prefix else path
        for folder, rules in reversed(self.levels):
            below = full[len(folder) + 1 :] if folder else full
            for rule in reversed(rules):  # the last matching rule decides
                if rule.only_directories and not is_directory:
                    continue
                if rule.pattern.fullmatch(below if rule.matches_path else name):
                    return rule.excludes
        return False


def _git_directory(repository: Path) -> Path:
    directory = repository / ".git"
    if directory.is_file():  # of a worktree or submodule, it names the directory
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
    content = file.read_bytes().removeprefix(b"\xef\xbb\xbf")  # byte order mark
    return [os.fsdecode(line).removesuffix("\r") for line in content.split(b"\n")]


def _parse(lines: Iterable[str]) -> tuple[_Rule, ...]:
    rules = []
    for line in lines:
        text = re.sub(r"(?<!\\) +$", "", line)  # trailing spaces, unless escaped
        if not text or text.startswith("#"):
            continue
        excludes = not text.startswith("!")
        text = text if excludes else text[1:]
        only_directories = text.endswith("/")
        text = text.removesuffix("/")
        matches_path = "/" in text
        expression = _expression(text.removeprefix("/"))
        if text and expression is not None:
            rules.append(_Rule(expression, excludes, only_directories, matches_path))
    return tuple(rules)


def _expression(glob: str) -> re.Pattern[str] | None:
    """Return the regular expression of a pattern; None if it is invalid and so matches nothing."""
    parts: list[str] = []
    index = 0
    while index < len(glob):
        character = glob[index]
        index += 1
        if character == "*":
            end = index
            while glob[end : end + 1] == "*":
                end += 1
            stars, index, before = end - index + 1, end, glob[index - 2 : index - 1]
            is_component = (
                stars > 1 and before in {"", "/"} and glob[index : index + 1] in {"", "/"}
            )
            if is_component and index < len(glob):  # ``**/``: any number of directories
                parts.append("(?:.*/)?")
                index += 1
            else:
                parts.append(".*" if is_component else "[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[":
            bracket = _bracket(glob, index)
            if bracket is None:
                return None
            expression, index = bracket
            parts.append(expression)
        elif character == "\\":
            if index == len(glob):
                return None
            parts.append(re.escape(glob[index]))
            index += 1
        else:
            parts.append(re.escape(character))
    return re.compile("".join(parts), re.DOTALL)


def _bracket(glob: str, start: int) -> tuple[str, int] | None:
    """Return the expression of ``[...]`` and the index after it; None if it has no end."""
    index = start
    negated = glob[index : index + 1] in {"!", "^"}
    index += negated
    members: list[str] = []
    first = index
    while True:
        character = glob[index : index + 1]
        if not character:
            return None
        if character == "]" and index > first:  # a leading ] is a member
            break
        named = re.compile(r"\[:(\w*):\]").match(glob, index)
        if named is not None:
            if named[1] not in _CLASSES:
                return None
            members.append(_CLASSES[named[1]])
            index = named.end()
            continue
        low, index = _literal(glob, index)
        if glob[index : index + 1] == "-" and glob[index + 1 : index + 2] not in {"", "]"}:
            high, index = _literal(glob, index + 1)
            if low <= high:  # an empty range matches nothing
                members.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            members.append(re.escape(low))
    inner = "".join(members)
    # A bracket never matches a slash.
    if negated:
        return f"(?!/)[^{inner}]" if inner else "[^/]", index + 1
    return f"(?!/)[{inner}]" if inner else "(?!)", index + 1


def _literal(glob: str, index: int) -> tuple[str, int]:
    """Return the character at an index, escaped or not, and the index after it."""
    if glob[index] == "\\" and index + 1 < len(glob):
        index += 1
    return glob[index], index + 1
