"""Diagnostics for missing programs and files of a command, and for bash syntax run by sh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from shadowprice.core.program import script_name
from shadowprice.core.wording import quote_for_display

_MISSING_FILE: Final = re.compile(r"No such file|[Cc]an(?:no|')t open|: not found$")
"""Messages of programs about a missing file."""
_LIBRARY: Final = re.compile(
    r"error while loading shared libraries|: cannot open shared object file: "
)
"""Messages of the dynamic linker: the program that they name isn't the missing file."""
_NO_LIBRARY: Final = re.compile(r"([^\s:/]+): cannot open shared object file: No such file")
_NO_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")
_LOOKUP: Final = re.compile(
    r"(?:^|: )([^\s:/]+): (?:command )?not found$"
    r"|exec: \\?\"([^\"\\]+)\\?\": executable file not found in \$PATH"
)
"""Messages of shells and container runtimes about a program that no folder of PATH has."""
_DOT_LOOKUP: Final = re.compile(r": \.: ([^\s:/]+): not found$")
"""Message of sh about a file that ``.`` should read: without a slash, ``.`` searches PATH."""
_NO_PROGRAM: Final = re.compile(r"cannot run (.+): No such file or directory$")
_REPORTER: Final = re.compile(r"(?:^|\s)([^\s:]+): (?:line )?(?:\d+: )?[^:]+: not found$")
"""Message about a missing program; group 1 is the shell or script that reports."""
_BASH_SYNTAX: Final = re.compile(
    r"^([^\s:]+): (?:line )?\d+: "
    r"((?:\w+: )?(?:Bad substitution|Illegal option \S+(?: \w+)?"
    r"|Syntax error: (?:Bad for loop variable|\"(?:[(}]|do)\" unexpected"
    r"|redirection unexpected)))"
)
"""Messages of dash about syntax and options that bash has."""
_SHELLS: Final = frozenset({"sh", "dash", "ash"})
_BASH_WORD: Final = re.compile(
    r"\[\[|\(\(|builtin|caller|compgen|complete|coproc|declare|dirs|disown|enable|function|help"
    r"|history|let|logout|mapfile|popd|pushd|readarray|select|shopt|source|suspend|typeset"
)
"""Words that bash has and a POSIX shell lacks."""
_LOGIN_FUNCTION: Final = re.compile(r"module|ml")
"""Functions that the profiles of clusters define: no directory of PATH has these names."""
_UNKNOWN_OPERATOR: Final = re.compile(r": \[: (?:\d+: )?(?:==: )?unexpected operator$")
"""Message of dash about ``[ a == b ]``."""
_SHELL_WORD: Final = re.compile(
    r"[.:!{]|alias|bg|case|cd|eval|exec|exit|export|fg|for|hash|if|jobs|local|read|readonly|return"
    rf"|set|shift|trap|ulimit|umask|unalias|unset|until|wait|while|{_BASH_WORD.pattern}"
)
"""Words that only a shell knows: no program has these names."""
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=")
_BASH_LINE: Final = "command: [bash, -c, ...]"
_MAX_CHECKED_WORDS: Final = 200  # maximum number of words of a command that are checked


def explain_command_failure(run: Mapping[str, Any], reason: str, tail: Sequence[str]) -> str:
    """Return why a job's command could not run, with a hint; empty if its log doesn't say.

    Error messages of interpreters differ, but contain the name of the program or file: a word of
    the command that isn't an absolute path. If a message names the searched folder, the result
    does too.

    ``run`` is the section of the job file, ``reason`` explains the job's end, and ``tail`` holds
    the last lines of its log.
    """
    command, workdir = run.get("command", ""), run.get("workdir")
    argv = _split_command(command)
    if isinstance(command, str) and "\r" in command and reason.endswith("exited 127"):
        return "the lines of the command end as on Windows; end them with a line feed alone"
    lines = [line.rstrip() for line in (reason, *tail)]
    if (match := _NO_PROGRAM.search(reason)) and (hint := _shell_words_hint(command, match[1])):
        return hint
    for line in lines:
        hint = _library_hint(line) or _bash_hint(command, line) or _lookup_hint(run, argv, line)
        if hint:
            return hint
        if not _MISSING_FILE.search(line) or _LIBRARY.search(line):
            continue
        named = [
            (match, word) for word in _relative(argv) if (match := _match_file_name(word, line))
        ]
        if not named:
            continue
        # The interpreter's name comes first: "bash: train.sh: No such file or directory".
        match, word = max(named, key=lambda hit: hit[0].end())
        if hint := _expansion_hint(command, word):
            return hint
        if isinstance(command, str) and word.startswith("~") and word in argv:
            user = word[1:].partition("/")[0]
            return f"the shell knows no user {quote_for_display(user)}; write the whole path"
        if word == argv[0] and "/" not in word:
            return _not_on_path(run, word)
        searched = (match[1] or "").removeprefix("./").rstrip("/")
        return f"{quote_for_display(word)} is not in {_workdir_hint(searched or workdir, workdir)}"
    for option, module in pairwise(argv):
        if option != "-m" or not module:
            continue
        modules = {hit[1] for line in lines if (hit := _NO_MODULE.search(line))}
        if modules & {module, module.partition(".")[0]}:
            subject = f"module {quote_for_display(module)} is neither installed nor in "
            return subject + _workdir_hint(workdir, workdir)
    return ""


def _shell_words_hint(command: object, program: str) -> str:
    """Return the hint for a command list whose first word only a shell understands; else empty."""
    if not isinstance(command, Sequence) or isinstance(command, str) or program != command[0]:
        return ""
    shown = quote_for_display(program)
    if re.search(r"\s", program):
        words = ", ".join(program.split()[:2])
        hint = f"write [{words}, ...], or one line without brackets"
        return f"{shown} contains spaces, but each list element is one argument; {hint}"
    if assignment := _ASSIGNMENT.match(program):
        hint = f"set {assignment[1]} in run.env"
        return f"{shown} is not a program, because no shell runs a list; {hint}"
    if _SHELL_WORD.fullmatch(program):
        hint = "write the command as one line"
        return f"{shown} is a command of shells, and no shell runs a list; {hint}"
    if _LOGIN_FUNCTION.fullmatch(program):
        return _login_function_hint(program)
    return _expansion_hint(command, program)


def _expansion_hint(command: object, word: str) -> str:
    """Return the hint for a word of a command list that only a shell would expand; else empty."""
    is_whole = isinstance(command, Sequence) and not isinstance(command, str) and word in command
    if not is_whole or not (word.startswith("~") or re.search(r"[$*?\[]", word)):
        return ""
    shown = quote_for_display(word)
    instead = "the whole path, or one line" if re.search(r"^~|\$", word) else "one line"
    return f"{shown} is not expanded, because no shell runs a list; write {instead}"


def _login_function_hint(word: str) -> str:
    shown = quote_for_display(word)
    return f"{shown} is a function of login shells; write command: [bash, -lc, ...]"


def _bash_hint(command: object, line: str) -> str:
    """Return the hint for a word or syntax of bash that another shell refused; else empty."""
    if match := _BASH_SYNTAX.search(line):
        return f"sh doesn't support bash syntax ({match[2]}); {_bash_hint_for(command, match[1])}"
    if _UNKNOWN_OPERATOR.search(line):
        instead = _bash_hint_for(command, line.partition(":")[0])
        return f"sh compares texts by = and not by ==; write =, or {instead}"
    match = _LOOKUP.search(line)
    word = (match[1] or "") if match else ""
    if not _BASH_WORD.fullmatch(word) or line.endswith("command not found"):
        return ""
    if not _is_from_shell(line):
        return ""
    reporter = _REPORTER.search(line)
    instead = _bash_hint_for(command, reporter[1] if reporter else "")
    dot = "write . for source, or " if word == "source" else ""
    return f"sh has no {quote_for_display(word)}, which is a command of bash; {dot}{instead}"


def _bash_hint_for(command: object, reporter: str) -> str:
    """Return how to run a command by bash. ``reporter`` is the shell or script with the error."""
    if script := script_name(command):
        return f"begin {quote_for_display(script)} with #!/bin/bash"
    name = reporter.rpartition("/")[2]
    if isinstance(command, str) and name in _SHELLS:
        return f"write {_BASH_LINE}, because /bin/sh runs a line"
    first = command[0] if isinstance(command, Sequence) and command else ""
    if not isinstance(command, str) and str(first).rpartition("/")[2] in _SHELLS:
        return f"write bash for {first} in command"
    if not name or name in _SHELLS:
        return f"run it with bash: {_BASH_LINE}"
    return f"run {quote_for_display(name)} with bash, or begin it with #!/bin/bash"


def _lookup_hint(run: Mapping[str, Any], argv: Sequence[str], line: str) -> str:
    """Return the hint for a word of the command that a shell didn't find in PATH; else empty."""
    if (match := _DOT_LOOKUP.search(line)) and match[1] in argv:
        name = match[1]
        return f". searches PATH for {quote_for_display(name)}; write ./{name}"
    match = _LOOKUP.search(line)
    word = (match[1] or match[2]) if match else None
    if word is None or word not in argv or not _is_from_shell(line):
        return ""
    if _LOGIN_FUNCTION.fullmatch(word):
        return _login_function_hint(word)
    return _not_on_path(run, word)


def _is_from_shell(line: str) -> bool:
    """Return whether a shell may have written a line; a program's error has the same form."""
    reporter = _REPORTER.search(line)
    if reporter is None or re.search(r": (?:line )?\d+: ", line):
        return True
    return reporter[1].rpartition("/")[2] in _SHELLS | {"bash", "ksh", "zsh"}


def _not_on_path(run: Mapping[str, Any], word: str) -> str:
    hint = "write its absolute path"
    if word == "python":
        hint = "write python3, or its absolute path"
    if run.get("image"):
        hint = f"{hint}, or use an image that has it"
    return f"{quote_for_display(word)} is in no directory of PATH; {hint}"


def _split_command(command: object) -> list[str]:
    """Return the words of a command; arguments with spaces are split like shell commands."""
    words = [command] if isinstance(command, str) else list(command or ())  # type: ignore[call-overload]  # a list
    argv: list[str] = []
    for word in map(str, words[:_MAX_CHECKED_WORDS]):
        try:
            argv += shlex.split(word) if " " in word or len(words) == 1 else [word]
        except ValueError:  # unbalanced quotes
            argv += word.split()
    return argv[:_MAX_CHECKED_WORDS]


def _relative(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, and values of options, that may be relative paths."""
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") else word
        if value.removeprefix("./") and not value.startswith(("/", "-")):
            yield value


def _match_file_name(word: str, line: str) -> re.Match[str] | None:
    """Return the match of a file's name in a line; group 1 is its folder, if given."""
    name = re.escape(word.removeprefix("./"))
    return re.search(rf"(?:^|[\s'\"`])(/[^'\"`:]*/|\./)?{name}(?=['\"`:]|$)", line)


def _library_hint(line: str) -> str:
    """Return the hint for a shared library that the dynamic linker didn't find; else empty."""
    match = _NO_LIBRARY.search(line)
    if match is None:
        return ""
    library = f"the shared library {quote_for_display(match[1])}"
    return f"{library} is in no directory of the dynamic linker; set LD_LIBRARY_PATH in run.env"


def _workdir_hint(searched: object, workdir: object) -> str:
    """Return the searched folder, and what to do about a file that it lacks."""
    hint = "set run.workdir, or write an absolute path"
    if workdir:
        hint = "put it there, or write an absolute path or another run.workdir"
    return f"{searched or 'its own directory'}, where the job runs; {hint}"
