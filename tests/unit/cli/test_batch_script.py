"""Headers of batch scripts, and the arguments that run a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.cli.batch_script import BatchScript, is_script, read_script
from shadowprice.core import bounds
from shadowprice.core.errors import InputError
from tests.support.examples import example_count
from tests.support.waiting import WAIT_LIMIT_SECONDS


def script(folder: Path, text: str, name: str = "train.sh") -> BatchScript:
    path = folder / name
    path.write_bytes(text.encode())
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
        ("--gpus-per-node=2", [("--gpus", "2")]),
        ("--gpus-per-task=a100:2", [("--gpus", "a100:2")]),
        ("--gres=gpu:2(S:0-1)", [("--gpus", "2")]),
        ("--gres=gpu:a100:2(S:0,1),license:1", [("--gpus", "a100:2")]),
        ("--gres=gres/gpu:2", [("--gpus", "2")]),
        ("--gres=gpu:0", []),
        ("--nodes=1 -n 1 --ntasks-per-node=1 -N 1-4", []),
        ("--gres=gpu:1g.5gb:2", [("--gpus", "1g.5gb:2")]),
        ("--gres=gpu:2080ti:1", [("--gpus", "2080ti:1")]),
        ("--gres=gpu:3090", [("--gpus", "3090")]),
        ("--gres=gpu_mem:4", []),
        ("--cpus-per-gpu=8 --gres=gpu:a100:2", [("--cpus", "16"), ("--gpus", "a100:2")]),
        ("--export=LR=0.1,PATH,NOT_SET", [("--env", "LR=0.1"), ("--env", "PATH")]),
        ("--export=ALL", []),
        ("--tasks-per-node=1", []),
        ("--time=UNLIMITED", []),
        ("--time infinite", []),
        ("--mem-per-cpu=4G -c 8", [("--memory", "32GiB"), ("--cpus", "8")]),
        ("--gres=gpu", [("--gpus", "1")]),
        ("--gres gpu:v100", [("--gpus", "v100:1")]),
        ("--time=90", [("--walltime", "5400s")]),
        ("--time=10:30", [("--walltime", "630s")]),
        ("-t 3:00:00", [("--walltime", "10800s")]),
        ("-t1-12", [("--walltime", "129600s")]),
        ("--time=2-0:30", [("--walltime", "174600s")]),
        ("--time=1-00:00:05", [("--walltime", "86405s")]),
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
    for stated, stem in (("My_Job", "my-job"), ("lr0.01", "lr0-01"), ("a.sh", "a-sh")):
        [(name, value, _)] = options(tmp_path, f"#SBATCH --job-name={stated}")
        assert name == "--name"
        assert value[:-6] == f"{stem}-"


def test_other_lines_of_slurm_are_named_once(tmp_path: Path) -> None:
    result = script(
        tmp_path,
        "#!/bin/sh\n#SBATCH -p debug --nodes 1 --exclusive\n#SBATCH --mem=0 --time=0\n"
        "##SBATCH --gpus=9\n#SBATCHED --gpus=9\n#SBATCH -p long --gres=license:1\n",
    )
    assert result.options == ()
    assert result.ignored == ("-p", "--exclusive", "--mem", "--time", "--gres")


def test_own_lines_take_precedence_and_the_header_ends_at_the_first_command(
    tmp_path: Path,
) -> None:
    result = options(
        tmp_path,
        "#SHADOWPRICE --gpus 2 --time=3h",
        "",
        "   # a comment",
        "#SBATCH --gpus=1",
        "cd /srv",
        "#SHADOWPRICE --gpus 8",
    )
    assert result == [("--gpus", "1", 5), ("--gpus", "2", 2), ("--time", "3h", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#SBATCH --time=soon\n", "train.sh:1: --time: unexpected value 'soon'; write 3:00:00"),
        ("\n#SBATCH --mem=1.5G\n", "train.sh:2: --mem: unexpected value '1.5G'; write 16G"),
        ("#SBATCH --gpus=\n", "train.sh:1: --gpus: unexpected value ''"),
        (f"#SBATCH --time={'9' * 5000}\n", "train.sh:1: --time: unexpected value '999"),
        (f"#SBATCH --mem={'9' * 5000}\n", "train.sh:1: --mem: unexpected value '999"),
        ("#SBATCH -a 1-4\n", "train.sh:1: --array: is not supported; submit the script once"),
        ("#SBATCH --dependency=afterok:1\n", "train.sh:1: --dependency: is not supported; remove"),
        ("#SBATCH -b now+1hour\n", "train.sh:1: --begin: is not supported; remove it, and submit"),
        ("#SBATCH -H\n", "train.sh:1: --hold: is not supported; remove it, and submit the script"),
        ("#SBATCH --gpus-per-socket=1\n", "--gpus-per-socket: is not supported; write --gpus"),
        ("#SBATCH --tres-per-task=gres/gpu:1\n", "--tres-per-task: is not supported; write --gpus"),
        ("#SBATCH --gres=gpu:a100:1,gpu:v100:1\n", "--gres: unexpected value 'gpu:a100:1,gpu:v100"),
        ("#SBATCH --gres=gpu:a100:2k\n", "--gres: unexpected value 'gpu:a100:2k'; write gpu:2, or"),
        ("#SBATCH --cpus-per-gpu=8\n", "--cpus-per-gpu: needs the number of GPUs; write --cpus-"),
        ("#SBATCH --tasks-per-node=2\n", "train.sh:1: --tasks-per-node: expected 1, got '2'"),
        ("#SBATCH --mem-per-gpu=4G\n", "train.sh:1: --mem-per-gpu: is not supported; write --mem,"),
        (
            "#SBATCH --mem-per-cpu=4G\n",
            "train.sh:1: --mem-per-cpu: needs the number of cores; give",
        ),
        (
            "#SBATCH --nodes=2\n",
            "train.sh:1: --nodes: expected 1, got '2': a script is one process",
        ),
        ("#SBATCH -n 2\n", "train.sh:1: --ntasks: expected 1, got '2': a script is one process"),
        ("#SBATCH --ntasks-per-node=11\n", "train.sh:1: --ntasks-per-node: expected 1, got '11'"),
        ("#SBATCH gpus=2\n", "train.sh:1: expected an option, got 'gpus=2'"),
        ("#SHADOWPRICE --gpus\n", "train.sh:1: --gpus: expected a value; write --gpus=..."),
        ("#SHADOWPRICE --name 'a\n", "train.sh:1: can't be split into words"),
        ("true\r\n", "train.sh: has line endings of Windows; convert it: sed"),
        (
            "#!/bin/sh\r#SBATCH --gpus=2\rtrue\r",
            "train.sh: has line endings of classic Mac OS; convert it: sed -i 's/\\r/\\n/g' ",
        ),
        (" \n", "train.sh: is empty"),
        ("true\0\n", "train.sh: contains a null character"),
        (
            "#" * (int(bounds.SCRIPT.maximum) + 1),
            "train.sh: exceeds the limit of 65,536 bytes of a batch script; move its code",
        ),
    ],
)
def test_errors_have_the_file_and_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        script(tmp_path, text)
    assert message in str(caught.value)


def test_a_pipe_is_no_script_and_keeps_its_content() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"#!/bin/sh\ntrue\n")
    os.close(writer)
    assert not is_script(Path(f"/dev/fd/{reader}"))
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"#!/bin/sh\ntrue\n"


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


@settings(max_examples=example_count(15), deadline=None, derandomize=True)
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
        f"sys.stdout.buffer.write(open(__file__, 'rb').read())\n"
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


def run_script(
    folder: Path, text: str, *arguments: str, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script after its file was removed, with an empty directory for temporary files."""
    path = folder / "train.py"
    path.write_bytes(text.encode())
    command = read_script(path).command(arguments)
    path.unlink()
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, capture_output=True, check=False, text=True, env=environment, **more
    )
    assert not [*temporary.iterdir()], "the copy is removed"
    return done


def test_a_script_imports_nothing_from_the_shared_temporary_directory(tmp_path: Path) -> None:
    done = run_script(tmp_path, f"#!{sys.executable}\nimport sys\nprint(sys.path[0])\n")
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path / "temporary"
    assert folder.name.startswith("shadowprice-")


def test_processes_that_a_script_spawns_read_it_again(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        f"#!{sys.executable}\nimport multiprocessing, sys\n"
        "def work(number): sys.exit(number)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work, args=(5,))\n"
        "    child.start()\n    child.join()\n    sys.exit(child.exitcode)\n",
    )
    assert done.returncode == 5, done.stderr


@pytest.mark.parametrize(
    ("line", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", 143), ("", 0)]
)
def test_the_exit_status_is_that_of_the_script(tmp_path: Path, line: str, status: int) -> None:
    done = run_script(tmp_path, f"#!{sys.executable}\nimport os, sys\n{line}\n")
    assert done.returncode == status


@pytest.mark.parametrize(
    ("trap", "status", "saved"),
    [("trap 'sleep 0.5; echo saved; exit 7' TERM", 7, "saved\n"), ("", 143, "")],
)
def test_a_signal_to_every_process_lets_the_script_save(
    tmp_path: Path, trap: str, status: int, saved: str
) -> None:
    text = f"#!/bin/sh\n{trap}\necho ready\nwhile :; do sleep 0.05; done\n"
    command = script(tmp_path, text).command([])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=WAIT_LIMIT_SECONDS)[0] == saved
    assert process.returncode == status
    assert not [*temporary.iterdir()]


def test_a_script_reads_its_own_input(tmp_path: Path) -> None:
    assert run_script(tmp_path, "#!/bin/sh\ncat\n", input="é\n").stdout == "é\n"


@pytest.mark.parametrize("name", ["a b'$x.sh", "-rf.sh", "é\n.sh"])
def test_a_script_may_have_any_file_name(tmp_path: Path, name: str) -> None:
    command = script(tmp_path, '#!/bin/sh\nprintf %s "${0##*/}"\n', name).command([])
    done = subprocess.run(
        command, capture_output=True, check=True, text=True, timeout=WAIT_LIMIT_SECONDS
    )
    assert done.stdout == name


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    text = "\ufeff#!/bin/sh\n#SBATCH --gpus=2\ntrue\n"
    (tmp_path / "run").write_bytes(text.encode())
    assert is_script(tmp_path / "run")
    result = read_script(tmp_path / "run")
    assert result.text == text[1:]
    assert [*result.interpreter] == ["/bin/sh"]
    assert [(entry.name, entry.value) for entry in result.options] == [("--gpus", "2")]


def test_only_the_part_of_export_that_has_no_effect_is_reported(tmp_path: Path) -> None:
    result = script(tmp_path, "#!/bin/sh\n#SBATCH --export=ALL,LR=0.1\n")
    assert [(option.name, option.value) for option in result.options] == [("--env", "LR=0.1")]
    assert result.ignored == ("--export=ALL",)
