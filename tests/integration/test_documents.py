"""Documents show what their commands print in a clone."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from tools.refresh_documents import DOCUMENTS

from shadowprice.cli.main import main
from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
TIMED = ("decision, ", "wall time")
"""Rows whose numbers are times, which no two machines share."""
PAGES = [*sorted((ROOT / "design").glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = {"P": "src/shadowprice/policies", "K": "src/shadowprice/kernels", "T": "tests"}
"""Short names of folders in the tables of design note 36."""


@dataclass(frozen=True)
class Fence:
    """A block between fences: commands with what they print, or a file."""

    language: str
    lines: list[str]


def fences(document: str) -> list[Fence]:
    results: list[Fence] = []
    lines: list[str] | None = None
    language = ""
    for line in (ROOT / document).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if lines is None:
                lines, language = [], line[3:].strip()
            else:
                results.append(Fence(language, lines))
                lines = None
        elif lines is not None:
            lines.append(line)
    assert lines is None, f"{document}: a fence is not closed"
    return results


def commands(fence: Fence) -> list[tuple[str, list[str]]]:
    """Return the commands of a block with the lines that follow each."""
    results: list[tuple[str, list[str]]] = []
    for line in fence.lines:
        if line.startswith("$ "):
            results.append((line[2:], []))
        elif results:
            results[-1][1].append(line)
    return results


def without_times(lines: list[str]) -> list[str]:
    """Return lines for comparison: rows of times keep their name and their number."""
    errors = []
    for line in lines:
        row = " ".join(line.split())
        if row.startswith(TIMED):
            name = next(name for name in TIMED if row.startswith(name))
            cells = re.findall(r"[\d.,]+ (?:ns|µs|ms|s|min|h)\b", line)
            row = f"{name} {len(cells)} times"
        if row:
            errors.append(row)
    return errors


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that has only the examples of a clone."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_prints_what_the_document_shows(
    document: str, clone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = 0
    for fence in fences(document):
        named = re.match(r"# (\S+\.yaml)$", fence.lines[0]) if fence.lines else None
        if fence.language == "yaml" and named:
            (clone / named[1]).write_text("\n".join(fence.lines), encoding="utf-8")
        for command, expected in commands(fence):
            if DOCUMENTS[document] not in f"$ {command}":
                continue
            words = shlex.split(command)
            assert words[0] == "shadowprice", command
            capfd.readouterr()
            assert main(words[1:]) == 0, command
            out, _ = capfd.readouterr()
            if expected:
                assert without_times(out.splitlines()) == without_times(expected), command
            ran += 1
    assert ran >= 1


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_make_targets_exist(document: str) -> None:
    for fence in fences(document):
        for line in fence.lines:
            if line.startswith("make "):
                target = line.split()[1]
                done = subprocess.run(
                    ["make", "--dry-run", "--directory", ROOT, target],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=WAIT_LIMIT_SECONDS,
                )
                assert done.returncode == 0, done.stderr


def test_the_readme_compares_what_the_demo_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Without `dorm`, which takes minutes, and the bound, which depends on how fast the machine is.
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How it compares\n")[2]
    lines = section.partition("\n## ")[0].splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    policies, rows = table[0][-6:], {row[0]: row[1:] for row in table[2:]}
    demo = subprocess.run(
        ["make", "--dry-run", "--directory", ROOT, "demo"],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    ).stdout.replace("\\\n", " ")
    generate, compare = (
        shlex.split(line)[1:]
        for line in demo.splitlines()
        if re.search(r"shadowprice (generate|compare) ", line)
    )
    compare = compare[: compare.index("-p")]
    monkeypatch.chdir(tmp_path)
    assert main(generate) == 0
    capfd.readouterr()
    assert main([*compare, "-p", ",".join(policies)]) == 0
    printed = {
        cells[0]: cells[1:]
        for line in capfd.readouterr().out.splitlines()
        if len(cells := re.split(r"\s{2,}", line.strip())) == len(policies) + 1
    }
    assert len(rows) == 4
    assert {name: printed[name] for name in rows} == rows


def test_included_files_exist() -> None:
    # A formatter takes a Python file's fence for code and changes it; then a page shows the fence.
    marks = [
        line
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"-+\s*8\s*<", line)
    ]
    for mark in marks:
        named = re.fullmatch(r'--8<-- "(.+)"', mark)
        assert named, mark
        assert (ROOT / named[1]).is_file(), mark


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_on_pages_are_those_of_the_repository(document: str) -> None:
    for fence in fences(document):
        named = re.match(r"# (examples/\S+)$", fence.lines[0]) if fence.lines else None
        if named:
            file = (ROOT / named[1]).read_text(encoding="utf-8").splitlines()
            assert fence.lines[1:] == file, named[1]


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    return listed.stdout.splitlines()


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


NAMED_FILE = re.compile(
    r"(?<![\w./<-])([\w-]+(?:/[\w.-]+)*\.(?:py|mjs))\b"
    r"(?:: (\w+(?:\.\w+)?)(\.\.\.)?)?"
)


def test_named_files_and_definitions_exist() -> None:
    files = tracked_files()
    checked = 0
    for page in (*PAGES, ROOT / "README.md"):
        for path, name, shortened in NAMED_FILE.findall(prose(page)):
            folder, _, rest = path.partition("/")
            full_path = f"{FOLDERS[folder]}/{rest}" if folder in FOLDERS else path
            results = [file for file in files if f"/{file}".endswith(f"/{full_path}")]
            assert results or "NAME" in path, f"{page}: no file {path}"
            if "_" in name or "." in name:
                texts = [(ROOT / file).read_text(encoding="utf-8") for file in results]
                ending = "" if shortened else r"\b"
                parts = [re.compile(rf"\b{part}{ending}") for part in name.split(".")]
                assert any(all(part.search(text) for part in parts) for text in texts), (
                    f"{page}: {path} has no {name}"
                )
                checked += 1
    assert checked > 50


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_named_modules_and_attributes_exist(page: Path) -> None:
    # Without an import: some modules need torch.
    for named in re.findall(r"(?:`|^::: )(shadowprice(?:\.\w+)+)(?=[`(]|$)", prose(page), re.M):
        module, rest = ROOT / "src", named.split(".")
        while rest and (module / rest[0]).is_dir():
            module /= rest.pop(0)
        if rest and (module / f"{rest[0]}.py").is_file():
            module /= f"{rest.pop(0)}.py"
        elif rest:
            module /= "__init__.py"
        text = module.read_text(encoding="utf-8") if rest else ""
        assert set(re.findall(r"\w+", text)).issuperset(rest), f"{page}: there is no {named}"


def test_only_times_may_differ_from_documented_output() -> None:
    one = ["finished      4    5", "wall time  11 ms  2 s"]
    assert without_times(one) == without_times(["finished 4 5", "wall time 3 µs 40 ms"])
    assert without_times(one) != without_times(["finished 4 6", "wall time 3 µs 40 ms"])
    assert without_times(one) != without_times(["finished 4 5", "wall time 3 µs"])


def test_the_changelog_has_one_short_line_for_each_change() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 160]
    # Nothing follows an entry but another entry or a blank line.
    following = [after for line, after in pairwise(lines) if line.startswith("- ")]
    assert not [line for line in following if line and not line.startswith("- ")]
