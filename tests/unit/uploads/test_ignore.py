"""Rules of .gitignore files, beside git itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.uploads.ignore import IgnoreRules
from shadowprice.uploads.packing import select_files
from tests.support.examples import example_count
from tests.support.waiting import WAIT_LIMIT_SECONDS

PATHS = (
    "a",
    "b.txt",
    "data/a",
    "data/b.txt",
    "data/sub/a",
    "x y",
    "sub/data/c",
    "sub/[a]",
    "data/sub/data/b.txt",
    "data/sub/sub/a",
    "#a",
    "!b",
)

_WORDS = st.sampled_from(
    [
        *"ab*?/!#\\[]^- ",
        "**",
        "**/",
        "/**",
        "data",
        "sub",
        "*.txt",
        "[a-c]",
        "[!a]",
        "[[:alpha:]]",
        "b.txt",
    ]
)
# Git compares pointers of two texts if ** isn't a whole component, so its answer depends on memory.
_UNDEFINED = re.compile(r"[^/]\*\*|\*\*[^/]")
_LINE = (
    st.lists(_WORDS, min_size=1, max_size=6)
    .map("".join)
    .filter(lambda line: not _UNDEFINED.search(line.lstrip("!").rstrip()))
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    subprocess.run(["git", "init", "-q", str(root)], check=True, timeout=WAIT_LIMIT_SECONDS)
    return root


def _kept_by_git(root: Path) -> set[str]:
    """Return the files that git doesn't ignore."""
    listed = subprocess.run(
        [
            "git",
            "-c",
            "core.excludesFile=/dev/null",
            "ls-files",
            "-oz",
            "--exclude-standard",
        ],
        cwd=root,
        capture_output=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    ).stdout
    return {os.fsdecode(name) for name in listed.split(b"\0") if name}


def _kept(root: Path) -> set[str]:
    files = select_files(root, max_bytes=1 << 30).files
    return {item.entry.path for item in files if item.entry.kind.name == "FILE"}


def _is_ignored_by_git(path: Path) -> bool:
    command = ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "-q", str(path)]
    return (
        subprocess.run(command, cwd=path.parent, check=False, timeout=WAIT_LIMIT_SECONDS).returncode
        == 0
    )


@settings(max_examples=example_count(400), deadline=None)
@given(
    st.lists(_LINE, min_size=1, max_size=4),
    st.lists(_LINE, max_size=3),
    st.lists(_LINE, max_size=2),
)
def test_rules_are_those_of_git(
    tree: Path, top: list[str], below: list[str], repository: list[str]
) -> None:
    (tree / ".gitignore").write_text("\n".join(top))
    (tree / "data" / ".gitignore").write_text("\n".join(below))
    (tree / ".git" / "info" / "exclude").write_text("\n".join(repository))
    assert _kept(tree) == _kept_by_git(tree)
    for folder in (tree / "data", tree / "data" / "sub"):
        # Git may ignore a directory that is sent on purpose.
        if _is_ignored_by_git(folder):
            return
        assert _kept(folder) == _kept_by_git(folder)


def test_a_directory_that_git_ignores_is_sent(tree: Path) -> None:
    (tree / ".gitignore").write_text("sub/\n*.txt\n")
    (tree / "data" / ".gitignore").write_text("")
    (tree / ".git" / "info" / "exclude").write_text("[[]a]\n")
    assert _kept(tree / "sub") == {"data/c"}


def test_rules_of_a_repository_hold_in_its_worktrees(tmp_path: Path) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "-q", str(main)], check=True, timeout=WAIT_LIMIT_SECONDS)
    commit = ["git", *identity, "commit", "-q", "--allow-empty", "-m", "a"]
    subprocess.run(commit, cwd=main, check=True, timeout=WAIT_LIMIT_SECONDS)
    subprocess.run(
        ["git", "worktree", "add", "-q", str(linked)],
        cwd=main,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    (main / ".git" / "info" / "exclude").write_text("secret\n")
    (linked / "sub").mkdir()
    for name in ("secret", "train.py"):
        (linked / "sub" / name).write_text("x")
    assert _kept(linked / "sub") == _kept_by_git(linked / "sub") == {"train.py"}


@pytest.mark.parametrize(
    ("rules", "path", "is_directory", "excluded"),
    [
        ("", "venv", True, True),
        ("", "sub/__pycache__", True, True),
        ("", ".git", False, True),  # a worktree has a file of this name
        ("*\n!*/\n!*.py", "venv", True, True),
        ("*\n!*/\n!*.py", "sub", True, False),
        ("*.bin", "sub/model.bin", False, True),
        ("/model.bin", "sub/model.bin", False, False),
        ("data/", "data", False, False),
        ("*.bin\r\n!keep.bin\r\n", "keep.bin", False, False),
        ("a\\ \nb ", "a ", False, True),
        ("\ufeffmodel", "model", False, True),
    ],
)
def test_rules_of_a_file(
    tmp_path: Path, rules: str, path: str, is_directory: bool, excluded: bool
) -> None:
    (tmp_path / ".shadowpriceignore").write_bytes(rules.encode())
    result = IgnoreRules().within(tmp_path, "")
    assert result.excludes(path, is_directory=is_directory) is excluded


def test_the_own_file_takes_precedence_and_is_no_link(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.csv\n")
    (tmp_path / ".shadowpriceignore").write_text("!small.csv\n")
    for name in ("small.csv", "large.csv", "train.py"):
        (tmp_path / name).write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".gitignore").symlink_to(tmp_path / "all")
    (tmp_path / "all").write_text("*\n")
    (tmp_path / "sub" / "kept").write_text("x")
    assert _kept(tmp_path) == {
        ".gitignore", ".shadowpriceignore", "small.csv", "train.py", "all", "sub/kept",
    }  # fmt: skip
