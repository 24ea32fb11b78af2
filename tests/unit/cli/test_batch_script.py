"""Headers of batch scripts, and the words that run a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.cli.batch_script import BatchScript, is_script, read_script
from shadowprice.core import bounds
from shadowprice.core.errors import InputError
from tests.support.waiting import WAIT_LIMIT_SECONDS


def script(folder: Path, text: str, name: str = "train.sh") -> BatchScript:
    path = folder / name
    path.write_text(text)
    return read_script(path)


def options(folder: Path, *lines: str) -> list[tuple[str, str, int]]:
    found = script(folder, "\n".join(["#!/bin/bash", *lines, "true", ""])).options
    return [(entry.name, entry.value, int(entry.location.rpartition(":")[2])) for entry in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--gpus=2", [("--gpus", "2")]),
        ("--gpus a100:2", [("--gpus", "a100:2")]),
        ("-G 4", [("--gpus", "4")]),
        ("--gres=gpu:2", [("--gpus", "2")]),
        ("--gres=license:1,gpu:a100:3", [("--gpus", "a100:3")]),
        ("--gres=gpu", [("--gpus", "1")]),
        ("--gres gpu:v100", [("--gpus", "v100:1")]),
        ("--time=90", [("--time", "5400s")]),
        ("--time=10:30", [("--time", "630s")]),
        ("-t 3:00:00", [("--time", "10800s")]),
        ("-t1-12", [("--time", "129600s")]),
        ("--time=2-0:30", [("--time", "174600s")]),
        ("--time=1-00:00:05", [("--time", "86405s")]),
        ("--cpus-per-task=8", [("--cpus", "8")]),
        ("-c8", [("--cpus", "8")]),
        ("--mem=16G", [("--memory", "16GiB")]),
        ("--mem=4000", [("--memory", "4000MiB")]),
        ("--mem 512m", [("--memory", "512MiB")]),
        ("--chdir=/srv/x", [("--workdir", "/srv/x")]),
        ("-D '/srv/a b' -c 2  # both", [("--workdir", "/srv/a b"), ("--cpus", "2")]),
    ],
)
def test_lines_of_slurm_become_options(
    tmp_path: Path, line: str, expected: list[tuple[str, str]]
) -> None:
    assert options(tmp_path, f"#SBATCH {line}") == [(*option, 2) for option in expected]


def test_a_name_of_slurm_begins_the_generated_name(tmp_path: Path) -> None:
    [(name, value, _)] = options(tmp_path, "#SBATCH --job-name=My_Job")
    assert name == "--name"
    assert value.startswith("my-job-")
    assert len(value) == len("my-job-") + 6


def test_other_lines_of_slurm_are_named_once(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "#!/bin/sh\n#SBATCH -p debug --nodes 2 --exclusive\n#SBATCH --mem=0 --time=0\n"
        "##SBATCH --gpus=9\n#SBATCHED --gpus=9\n#SBATCH --nodes=3 --gres=license:1\n",
    )
    assert found.options == ()
    assert found.ignored == ("-p", "--nodes", "--exclusive", "--mem", "--time", "--gres")


def test_own_lines_take_precedence_and_the_header_ends_at_the_first_command(
    tmp_path: Path,
) -> None:
    found = options(
        tmp_path,
        "#SHADOWPRICE --gpus 2 --time=3h",
        "",
        "   # a comment",
        "#SBATCH --gpus=1",
        "cd /srv",
        "#SHADOWPRICE --gpus 8",
    )
    assert found == [("--gpus", "1", 5), ("--gpus", "2", 2), ("--time", "3h", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#SBATCH --time=soon\n", "train.sh:1: --time: unexpected value 'soon'; write 3:00:00"),
        ("\n#SBATCH --mem=1.5G\n", "train.sh:2: --mem: unexpected value '1.5G'; write 16G"),
        ("#SBATCH --gpus=\n", "train.sh:1: --gpus: unexpected value ''"),
        ("#SBATCH gpus=2\n", "train.sh:1: expected an option, got 'gpus=2'"),
        ("#SHADOWPRICE --gpus\n", "train.sh:1: --gpus: expected a value; write --gpus=..."),
        ("#SHADOWPRICE --name 'a\n", "train.sh:1: can't be split into words"),
        ("true\r\n", "train.sh: has line endings of Windows; convert it: sed"),
        (" \n", "train.sh: is empty"),
        ("true\0\n", "train.sh: contains a null character"),
        (
            "#" * (int(bounds.SCRIPT.most) + 1),
            "train.sh: is above the bound of 65,536 bytes of a batch script; move its code",
        ),
    ],
)
def test_errors_have_the_file_and_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        script(tmp_path, text)
    assert message in str(caught.value)


def test_scripts_are_known_by_their_name_or_first_line(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: []\n")
    (tmp_path / "run").write_text("#!/usr/bin/env python3\n")
    assert [is_script(tmp_path / name) for name in ("jobs.yaml", "run", "absent.sh", "absent")] == [
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(InputError, match=r"absent\.sh: can't be read: No such file"):
        read_script(tmp_path / "absent.sh")


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [
        ("#!/bin/sh", ["/bin/sh"]),
        ("#! /bin/bash -eu ", ["/bin/bash", "-eu"]),
        ("#!/usr/bin/env -S python3 -u", ["/usr/bin/env", "-S python3 -u"]),
        ("echo", ["bash"]),
    ],
)
def test_the_first_line_names_the_interpreter(
    tmp_path: Path, first: str, interpreter: list[str]
) -> None:
    assert [*script(tmp_path, f"{first}\n").interpreter] == interpreter


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    body=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=50),
    repeated=st.integers(1, 300),
    arguments=st.lists(st.text("a $'\"\\*é\n-", max_size=6), max_size=3),
)
def test_the_interpreter_receives_every_character(
    tmp_path_factory: pytest.TempPathFactory, body: str, repeated: int, arguments: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("script")
    code = (
        f"#!{sys.executable}\nimport os, sys\n"
        f"sys.stdout.buffer.write(open('/dev/fd/9', 'rb').read())\n"
        f"print(sys.argv[1:], file=sys.stderr)\n"
    )
    text = code + "#" + body.replace("\n", "\n#") * repeated
    path = folder / "run"
    path.write_bytes(text.encode())
    command = read_script(path).command(arguments)
    path.unlink()
    done = subprocess.run(
        command,
        capture_output=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
        env={"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout == text.encode()
    assert done.stderr.decode().strip() == repr(arguments)
    assert not [*folder.iterdir()], "the copy is removed"
