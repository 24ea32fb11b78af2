"""Hints about commands that could not run, from messages of real shells and interpreters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.program import build_script_command
from shadowprice.executors.generations import logs
from shadowprice.executors.supervision.children import spawn_error_message
from shadowprice.service.state.command_failures import explain_command_failure
from tests.support.waiting import WAIT_LIMIT_SECONDS

NOT_EXPANDED = "is not expanded, because no shell runs a list"
STATE = "set run.workdir, or write an absolute path"


def said(command: str | list[str], folder: Path) -> list[str]:
    """Return the error output of a command in a folder, started as by an executor."""
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    ran = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_SECONDS
    )
    assert ran.returncode, command
    return ran.stderr.splitlines()[-logs.TAIL_LINES :]


@pytest.mark.parametrize(
    ("command", "what", "folder"),
    [
        ([sys.executable, "train.py"], "train.py", "{}"),
        ([sys.executable, "-u", "./code/train.py", "--epochs=3"], "./code/train.py", None),
        (f"{sys.executable} train.py --epochs 3", "train.py", "{}"),
        (f"OMP_NUM_THREADS=1 exec {sys.executable} train.py", "train.py", "{}"),
        (["bash", "train.sh"], "train.sh", None),
        (["sh", "train.sh"], "train.sh", None),
        (["sh", "-c", "./train.sh --fast"], "./train.sh", None),
        ("./train.sh", "./train.sh", None),
        (["perl", "x.pl"], "x.pl", None),
        ([sys.executable, "-c", "open('data.csv')", "--data=data.csv"], "data.csv", None),
    ],
    ids=str,
)
def test_missing_program_is_named_with_directory_and_hint(
    tmp_path: Path, command: str | list[str], what: str, folder: str | None
) -> None:
    if isinstance(command, list) and shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} here")
    tail = said(command, tmp_path)
    message = explain_command_failure({"command": command}, "worker-0 exited 2", tail)
    where = message.partition(" is not in ")[2].partition(", where the job runs; ")[0]
    assert message == f"{what!r} is not in {where}, where the job runs; {STATE}"
    if folder is not None:
        assert where == folder.format(tmp_path)
    stated = {"command": command, "workdir": str(tmp_path)}
    assert f"is not in {tmp_path}" in explain_command_failure(stated, "worker-0 exited 2", tail)
    assert "put it there" in explain_command_failure(stated, "worker-0 exited 2", tail)


@pytest.mark.train
@pytest.mark.parametrize("workers", [1, 2])
def test_a_script_of_torchrun_is_named(tmp_path: Path, workers: int) -> None:
    """It prints two dozen lines more, and a line for each failed process."""
    pytest.importorskip("torch")
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [torchrun, "--standalone", f"--nproc-per-node={workers}", "train.py"]
    message = explain_command_failure(
        {"command": command}, "worker-0 exited 1", said(command, tmp_path)
    )
    assert message == f"'train.py' is not in {tmp_path}, where the job runs; {STATE}"


def test_missing_module_is_named(tmp_path: Path) -> None:
    for module in ("train_it_here", "project_here.train"):
        command = [sys.executable, "-m", module]
        message = explain_command_failure(
            {"command": command}, "worker-0 exited 1", said(command, tmp_path)
        )
        assert message == (
            f"module {module!r} is neither installed nor in its own directory, where the job runs; "
            f"{STATE}"
        )


@pytest.mark.parametrize(
    ("run", "reason", "tail", "expected"),
    [
        (
            {"command": ["./train.sh"]},
            "worker-0 exited 127: cannot run ./train.sh: No such file or directory",
            [],
            f"'./train.sh' is not in its own directory, where the job runs; {STATE}",
        ),
        (
            {"command": ["trainn", "x.py"]},
            "worker-0 exited 127: cannot run trainn: No such file or directory",
            [],
            "'trainn' is in no directory of PATH; write its absolute path",
        ),
        ({"command": ["python", "a.py"]}, "worker-0 exited 1", ["a.py: the loss is NaN"], ""),
        ({"command": ["python", "/a.py"]}, "worker-0 exited 2", ["can't open file '/a.py'"], ""),
        ({"command": ["python", "a.py"]}, "worker-0 exited 1", ["No such file: 'data.a.py'"], ""),
        ({"command": "echo 'oops"}, "worker-0 exited 2", ["Unterminated: not found"], ""),
        ({"command": ["python", "x.py"]}, "worker-0 exited 1", ["KeyError: help: not found"], ""),
        ({}, "worker-0 exited 2", ["x: No such file or directory"], ""),
        ({"command": ["a", "-m"]}, "worker-0 exited 2", ["No module named a"], ""),
    ],
)
def test_only_words_of_the_command_are_named(
    run: dict[str, Any], reason: str, tail: list[str], expected: str
) -> None:
    assert explain_command_failure(run, reason, tail) == expected


BASH_LINE = "write command: [bash, -c, ...], because /bin/sh runs a line"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "source /etc/profile && echo ok",
            "sh has no 'source', which is a command of bash; write . for source, or " + BASH_LINE,
        ),
        ("[[ 1 == 1 ]] && echo", "sh has no '[[', which is a command of bash; " + BASH_LINE),
        ("cd / && pushd /tmp", "sh has no 'pushd', which is a command of bash; " + BASH_LINE),
        (
            "files=(a b); echo",
            'sh doesn\'t support bash syntax (Syntax error: "(" unexpected); ' + BASH_LINE,
        ),
        (
            "name=abc; echo ${name:0:2}",
            "sh doesn't support bash syntax (Bad substitution); " + BASH_LINE,
        ),
        (
            "select x in a b; do echo; done",
            'sh doesn\'t support bash syntax (Syntax error: "do" unexpected); ' + BASH_LINE,
        ),
        ("[ 1 == 1 ]", "sh compares texts by = and not by ==; write =, or " + BASH_LINE),
        (
            "module load cuda",
            "'module' is a function of login shells; write command: [bash, -lc, ...]",
        ),
        ("~nosuchuser/x --a", "the shell knows no user 'nosuchuser'; write the whole path"),
        (
            "echo\r\ntrainn\r",
            "the lines of the command end as on Windows; end them with a line feed alone",
        ),
        ("cd / && trainn --fast", "'trainn' is in no directory of PATH; write its absolute path"),
        (". settings && true", ". searches PATH for 'settings'; write ./settings"),
    ],
)
def test_a_line_that_only_bash_can_run_gets_the_hint_of_its_shell(
    tmp_path: Path, line: str, expected: str
) -> None:
    if "dash" not in os.path.realpath("/bin/sh"):
        pytest.skip("/bin/sh is not dash here")
    tail = said(line, tmp_path)
    assert explain_command_failure({"command": line}, "worker-0 exited 127", tail) == expected


def test_the_hint_names_the_shell_or_script_that_reported_the_word(tmp_path: Path) -> None:
    if "dash" not in os.path.realpath("/bin/sh"):
        pytest.skip("/bin/sh is not dash here")
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\nsource /etc/profile\n")
    script.chmod(0o755)
    for command, instead in (
        (["sh", "train.sh"], "write bash for sh in command"),
        (["sh", "-c", "source x"], "write bash for sh in command"),
        ("./train.sh", "run 'train.sh' with bash, or begin it with #!/bin/bash"),
        (["./train.sh"], "run 'train.sh' with bash, or begin it with #!/bin/bash"),
        (
            build_script_command("train.sh", script.read_text(), ["/bin/sh"], []),
            "begin 'train.sh' with #!/bin/bash",
        ),
    ):
        hint = explain_command_failure({"command": command}, "", said(command, tmp_path))
        assert hint == (
            f"sh has no 'source', which is a command of bash; write . for source, or {instead}"
        )
    unknown = said(["bash", "-c", "trainn x"], tmp_path)
    assert explain_command_failure({"command": ["bash", "-c", "trainn x"]}, "", unknown) == (
        "'trainn' is in no directory of PATH; write its absolute path"
    )


@pytest.mark.parametrize(
    ("run", "hint"),
    [
        (
            {"command": ["python train.py"]},
            (
                "'python train.py' contains spaces, but each list element is one argument; "
                "write [python, train.py, ...], or one line without brackets"
            ),
        ),
        (
            {"command": ["SEED=1", "python", "x.py"]},
            "'SEED=1' is not a program, because no shell runs a list; set SEED in run.env",
        ),
        (
            {"command": ["cd", "/data", "&&", "ls"]},
            "'cd' is a command of shells, and no shell runs a list; write the command as one line",
        ),
        (
            {"command": ["~/train.sh"]},
            f"'~/train.sh' {NOT_EXPANDED}; write the whole path, or one line",
        ),
        (
            {"command": ["module", "load", "cuda"]},
            "'module' is a function of login shells; write command: [bash, -lc, ...]",
        ),
        (
            {"command": ["python", "x.py"]},
            "'python' is in no directory of PATH; write python3, or its absolute path",
        ),
        (
            {"command": ["trainn"], "image": "a/b"},
            (
                "'trainn' is in no directory of PATH; "
                "write its absolute path, or use an image that has it"
            ),
        ),
    ],
)
def test_a_list_whose_first_word_is_no_program_gets_the_hint_of_a_list(
    run: dict[str, Any], hint: str
) -> None:
    reason = f"worker-0 exited 127: cannot run {run['command'][0]}: No such file or directory"
    assert explain_command_failure(run, reason, []) == hint


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["ls", "*.none"], f"'*.none' {NOT_EXPANDED}; write one line"),
        (
            [sys.executable, "~/none.py"],
            f"'~/none.py' {NOT_EXPANDED}; write the whole path, or one line",
        ),
        (
            [sys.executable, "$NOWHERE/none.py"],
            f"'$NOWHERE/none.py' {NOT_EXPANDED}; write the whole path, or one line",
        ),
        (
            ["sh", "-c", "ls *.none"],
            f"'*.none' is not in its own directory, where the job runs; {STATE}",
        ),
    ],
)
def test_arguments_that_no_shell_expands_are_named(
    tmp_path: Path, command: list[str], hint: str
) -> None:
    tail = said(command, tmp_path)
    assert explain_command_failure({"command": command}, "worker-0 exited 2", tail) == hint


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"#!/no/such/interpreter -x\n", "its first line names '/no/such/interpreter', which"),
        (b"#!/bin/sh\r\necho\r\n", "its lines end as on Windows; convert it: sed -i 's/\\r$//'"),
        (None, "Permission denied; it is a directory: name the program in it"),
        (b"echo", "Permission denied; make it executable (chmod +x)"),
    ],
)
def test_a_program_that_cannot_be_run_is_explained(
    tmp_path: Path, content: bytes | None, hint: str
) -> None:
    program = tmp_path / "train.sh"
    if content is None:
        program.mkdir()
    else:
        program.write_bytes(content)
        program.chmod(0o755 if content.startswith(b"#!") else 0o644)
    plan = {"command": ["./train.sh"], "directory": str(tmp_path)}
    with pytest.raises(OSError, match="train") as caught:
        subprocess.run(plan["command"], cwd=tmp_path, check=False, timeout=WAIT_LIMIT_SECONDS)
    message = spawn_error_message(caught.value, plan)
    assert message.startswith(f"cannot run ./train.sh: {hint}")
    assert explain_command_failure({"command": plan["command"]}, message, []) == ""


def test_a_container_runtime_names_the_program(tmp_path: Path) -> None:
    line = 'exec: "trainn": executable file not found in $PATH: unknown'
    run = {"command": ["trainn"], "image": "a/b"}
    assert explain_command_failure(run, line, []).startswith("'trainn' is in no directory of PATH")


@pytest.mark.parametrize("program", ["python3", "./train"])
def test_a_missing_library_is_not_taken_for_the_program(program: str) -> None:
    linker = f"{program}: error while loading shared libraries: libcuda.so.1: "
    missing = f"{linker}cannot open shared object file: No such file or directory"
    imported = (
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
    )
    for line in (missing, imported):
        hint = explain_command_failure({"command": [program]}, "worker-0 exited 127", [line])
        assert hint == (
            "the shared library 'libcuda.so.1' is in no directory of the dynamic linker; "
            "set LD_LIBRARY_PATH in run.env"
        )
    unreadable = f"{linker}cannot open shared object file: Error 24"
    unmapped = f"{linker}failed to map segment from shared object"
    for line in (unreadable, unmapped):
        assert not explain_command_failure({"command": [program]}, "worker-0 exited 127", [line])
