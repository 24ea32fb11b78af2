"""Policies, trace formats and executors outside the package: files and entry points."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shadowprice import extensions
from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.registry import create_executor
from shadowprice.extensions import FileExtension, is_file_reference, split_path
from shadowprice.policies import registry
from shadowprice.policies.choice import PolicyChoice
from shadowprice.traces.locate import parse_spec, read_trace
from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SAMPLE = EXAMPLES / "policy.py"
WORKLOAD = ("-c", str(EXAMPLES / "cluster.yaml"), "-j", str(EXAMPLES / "jobs.yaml"), "-q")

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
[IMPORTER] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
"""The importer that the documentation shows."""
NO_IMPORTER = "\n\ndef no_trace(path, context):\n    return 3\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rolling", False),
        ("./policy.py:P", True),
        ("policy.py:P", True),
        ("/a/b.py", True),
        ("policy.py", True),
    ],
)
def test_a_reference_differs_from_a_name(text: str, expected: bool) -> None:
    assert is_file_reference(text) is expected


def test_a_home_that_doesnt_exist_is_no_file() -> None:
    with pytest.raises(InputError, match=r"--policy ~nobody-here/p\.py: no such file"):
        FileExtension.read("~nobody-here/p.py:P", "--policy")


def test_a_file_that_was_interrupted_is_executed_again(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from pathlib import Path\n"
        "if not Path(__file__).with_name('again').exists():\n"
        "    raise KeyboardInterrupt\n"
        "P = 3\n"
    )
    extension = FileExtension.read(f"{tmp_path}/p.py:P", "--policy")
    with pytest.raises(KeyboardInterrupt):
        extension.load()
    (tmp_path / "again").touch()
    assert extension.load() == 3


def test_a_path_behind_a_reference_may_have_colons() -> None:
    assert split_path("./a:b/lab.py:read:c:d.py:e") == ("./a:b/lab.py:read", "c:d.py:e")
    assert split_path("./lab.py:read") is None
    assert split_path("./lab.py:jobs.csv") is None


def test_a_reference_round_trips_whatever_its_path_holds(tmp_path: Path) -> None:
    folder = tmp_path / "a,b?c%d e"
    folder.mkdir()
    shutil.copy(SAMPLE, folder)
    file = PolicyChoice.named(f"{tmp_path}/a%2Cb%3Fc%25d e/policy.py:FirstFit").file
    assert file is not None
    assert FileExtension.read(file.reference, "") == file
    argv = PolicyChoice.parse(f"{file.reference}?workers=max").argv()
    assert argv == ["--policy", file.reference, "--set", "workers=max"]


@pytest.mark.parametrize(
    ("content", "reference", "message"),
    [
        (None, "p.py:P", r"--policy \S*p.py: no such file or directory; write FILE.py:NAME"),
        (None, "%00p.py:P", r"--policy \S*p.py: can't be read; write FILE.py:NAME"),
        ("class Q: pass", "p.py:P", r"p.py: has no name 'P'"),
        ("class Polcy: pass", "p.py:Policy", r"did you mean 'Polcy'\?"),
        ("class P: pass", "p.py", r"--policy: expected a name after the file, got .*write FILE"),
        ("x = 1\nx(", "p.py:P", r"p.py: line 2: SyntaxError: .*; fix the file"),
        ("x = 1\n\n1 / 0", "p.py:P", r"p.py: line 3: ZeroDivisionError: .*--debug shows"),
        (
            "import no_such_module",
            "p.py:P",
            r"line 1: ModuleNotFoundError.*; install the imported package",
        ),
        ("raise SystemExit(3)", "p.py:P", r"p.py: line 1: SystemExit: 3"),
        ("P = 3", "p.py:P", r"p.py:P: expected a policy class, got a int; name the class"),
        ("class P: pass", "p.py:P", r"lacks decide, resume, parameters_in_force; derive it"),
        (
            "from shadowprice.policies.base import BasePolicy as P",
            "p.py:P",
            r"doesn't define decide; define them",
        ),
        (
            (
                "from shadowprice.policies.base import BasePolicy\n"
                "class P(BasePolicy):\n"
                "    Parameters = dict\n"
                "    def decide(self, view, event): return ()"
            ),
            "p.py:P",
            r"expected a model in Parameters, got a type; derive it from .*registry.Parameters",
        ),
        (
            (
                "from shadowprice.policies.base import BasePolicy\n"
                "class P(BasePolicy):\n"
                "    def __init__(self): pass\n"
                "    def decide(self, view, event): return ()"
            ),
            "p.py:P",
            r"can't be built from context and parameters: .*; define __init__\(self, context,",
        ),
    ],
)
def test_a_wrong_file_is_one_diagnostic_with_a_hint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    reference: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("p.py").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        PolicyChoice.named(f"./{reference}")
    [_] = caught.value.faults
    assert main(["simulate", *WORKLOAD, "-p", f"./{reference}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


def test_an_exception_while_deciding_is_reported_at_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        "from shadowprice.policies.base import BasePolicy\n"
        "class P(BasePolicy):\n"
        "    def decide(self, view, event):\n"
        "        raise KeyError('gpu9')\n"
    )
    assert main(["simulate", *WORKLOAD, "-p", f"{path}:P"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert (
        line
        == f"error: {path}: line 4: KeyError: 'gpu9'; fix the file; --debug shows the traceback"
    )


def test_parameters_are_validated_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", *WORKLOAD, "-p", f"{SAMPLE}:FirstFit"]
    assert main([*words, "-s", "workers=some"]) == 2
    assert "policy policy.FirstFit: workers: expected 'min' or" in capsys.readouterr().err
    assert main([*words, "-s", "worker=max"]) == 2
    assert "did you mean 'workers'" in capsys.readouterr().err
    assert main(["policies", f"{SAMPLE}:FirstFit"]) == 0
    shown = capsys.readouterr().out
    assert "Places the workers of each job" in shown
    assert "workers min | max min Number of workers of a job." in " ".join(shown.split())


def test_a_class_declares_what_the_registry_asks(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        "from shadowprice.policies.base import BasePolicy\n"
        "class P(BasePolicy):\n"
        "    '''One sentence\n"
        "    on two lines.\n\n"
        "    More of it.\n"
        "    '''\n"
        "    paper = 'a paper'\n"
        "    counts_places = knows_all_jobs = True\n"
        "    live_settings = {'preset': 'none'}\n"
        "    def decide(self, view, event): return ()\n"
    )
    info = PolicyChoice.named(f"{path}:P").info
    assert (info.name, info.summary) == ("p.P", "One sentence on two lines.")
    assert (info.details, info.paper) == ("More of it.", "a paper")
    assert (info.counts_places, info.knows_all_jobs) == (True, True)
    assert info.live_settings == {"preset": "none"}


def test_another_version_of_a_file_is_another_module(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    text = SAMPLE.read_text()
    path.write_text(text)
    first = PolicyChoice.named(f"{path}:FirstFit")
    path.write_text(text + "\nVERSION = 2\n")
    second = PolicyChoice.named(f"{path}:FirstFit")
    assert first.info.build is not second.info.build
    assert first.file is not None
    assert first.file.load() is first.info.build  # as it was read, whatever the file holds now


def test_a_choice_carries_its_file_to_a_process_that_has_none(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    shutil.copy(SAMPLE, path)
    kept = tmp_path / "choice.pickle"
    kept.write_bytes(pickle.dumps(PolicyChoice.named(f"{path}:FirstFit", {"workers": "max"})))
    path.unlink()
    program = (
        "import pickle, sys; choice = pickle.load(open(sys.argv[1], 'rb'));"
        "print(choice.parameters().workers, choice.info.build.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(kept)],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.stdout.split() == ["max", "FirstFit"]


# ---------------------------------------------------------------- trace formats


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "lab.py").write_text(IMPORTER + NO_IMPORTER)
    (folder / "jobs.py:1.csv").write_text("job,submit,gpus,duration\na,0,1,60\nb,5,2,60\n")
    return folder


def test_a_trace_is_read_by_a_file(lab: Path) -> None:
    spec = f"{lab}/lab.py:read_lab:{lab}/jobs.py:1.csv?limit=1"
    parsed = parse_spec(spec)
    assert (parsed.format.name, parsed.format.title) == (
        "lab.read_lab",
        "Jobs of the lab's own list.",
    )
    assert read_trace(spec).jobs["job"].to_list() == ["a"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "{lab}/lab.py:read_lab",
            r"trace: expected a format and a path, got .*; write FILE.py:NAME",
        ),
        (
            "{lab}/lab.py:read_labs:x.csv",
            r"lab.py: has no name 'read_labs'; did you mean 'read_lab'\?",
        ),
        ("{lab}/lab.py:pl:x.csv", r"lab.py:pl: expected an importer \(path, context\) -> Trace"),
        ("{lab}/lib.py:read:x.csv", r"trace .*lib.py: no such file or directory"),
        ("{lab}/lab.py:no_trace:x.csv", r"expected a Trace, got a int; return what"),
    ],
)
def test_a_wrong_importer_is_one_diagnostic(lab: Path, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(spec.format(lab=lab))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("a,0,1,60\na,5,2,60", "job: two jobs have the name 'a'; rename one"),
        (",0,1,60", "job: a value is missing; leave its row out"),
        ("a,,1,60", "submit: a value is missing; leave its row out"),
        ("a,0,nan,60", "'a': gpus: is not a number"),
        ("a,0,1,-5", "'a': duration: expected a number of 0 or more, got -5"),
        ("a,0,1,inf", "'a': duration: inf exceeds the limit of 5,000,000,000 seconds"),
    ],
)
def test_the_result_of_an_importer_is_checked(lab: Path, rows: str, problem: str) -> None:
    (lab / "jobs.csv").write_text(f"job,submit,gpus,duration\n{rows}\n")
    with pytest.raises(InputError, match=re.escape(f"jobs.csv: {problem}")):
        read_trace(f"{lab}/lab.py:read_lab:{lab}/jobs.csv")


def test_an_importer_names_only_known_columns(lab: Path) -> None:
    code = (lab / "lab.py").read_text().replace('"duration"', '"durations"')
    (lab / "typo.py").write_text(code)
    (lab / "jobs.csv").write_text("job,submit,gpus,durations\na,0,1,60\n")
    with pytest.raises(InputError, match="durations: unknown column; did you mean 'duration'"):
        read_trace(f"{lab}/typo.py:read_lab:{lab}/jobs.csv")


def test_a_table_that_an_importer_cannot_read_is_reported_at_its_line(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab / "jobs.csv").write_text("job,submit,gpus\na,0,1\n")
    assert main(["trace", "info", f"{lab}/lab.py:read_lab:{lab}/jobs.csv"]) == 1
    assert "lab.py: line " in capsys.readouterr().err


def test_a_run_records_the_files_that_it_executed(
    lab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.py"
    shutil.copy(SAMPLE, policy)
    words = ["--trace", f"{lab}/lab.py:read_lab:{lab}/jobs.py:1.csv", "-p", f"{policy}:FirstFit"]
    assert main(["simulate", *words, "--out", str(tmp_path / "run"), "-q"]) == 0
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["policy"] == "policy.FirstFit"
    file = FileExtension.read(f"{policy}:FirstFit", "")
    assert info["policy_origin"] == {
        "file": str(policy),
        "object": "FirstFit",
        "sha256": file.sha256,
    }
    [format_] = [part for part in info["inputs"] if part["kind"] == "trace format"]
    assert format_["name"] == str(lab / "lab.py")
    assert len(format_["sha256"]) == 64
    assert PolicyChoice.of_run(info).file == file
    policy.write_text(SAMPLE.read_text() + "\nraise SystemExit\n")
    with pytest.raises(InputError, match=r"policy.py: has changed since the run; run it again"):
        PolicyChoice.of_run(info)


def test_files_of_a_run_are_only_executed_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(
        "jobs:\n- {name: wide, epochs: 1, chunks: 20, minibatches: 10, minibatch_time: 1s,\n"
        "   workers: {min: 12, max: 12}, worker: {gpu: 1}, utility: {kind: constant, value: 1}}\n"
    )
    mark = tmp_path / "executed"
    policy = tmp_path / "policy.py"
    note = f"\nwith open({str(mark)!r}, 'a') as mark:\n    mark.write('x')\n"
    policy.write_text(SAMPLE.read_text() + note)
    words = ["-c", str(EXAMPLES / "cluster.yaml"), "-j", str(jobs), "-p", f"{policy}:FirstFit"]
    run = tmp_path / "run"
    assert main(["simulate", *words, "--out", str(run), "-q"]) == 0
    assert mark.read_text() == "x"
    for name in [name for name in sys.modules if name.startswith("shadowprice_file_policy")]:
        del sys.modules[name]
    registry.extension_info.cache_clear()
    assert main(["explain", str(run), "wide"]) == 0
    assert "--advice computes it by running again, with the files" in capsys.readouterr().out
    assert mark.read_text() == "x"
    assert main(["explain", str(run), "wide", "--advice"]) == 0
    assert mark.read_text() == "xx"


# ---------------------------------------------------------------- executors


def test_an_executor_of_a_file_is_made_with_the_options(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from shadowprice.executors.local.executor import LocalExecutor\n"
        "class Mine(LocalExecutor):\n"
        "    pass\n"
        "def broken(options):\n"
        "    return options\n"
        "def none():\n"
        "    return None\n"
    )
    options = ExecutorOptions(str(tmp_path / "executor"))
    assert type(create_executor(f"{path}:Mine", options)).__name__ == "Mine"
    with pytest.raises(InputError, match=r"mine.py:broken: expected an executor; it lacks .*start"):
        create_executor(f"{path}:broken", options)
    with pytest.raises(InputError, match=r"mine.py:none: can't be made from executor options"):
        create_executor(f"{path}:none", options)
    with pytest.raises(InputError, match=r"--executor \S*no.py: no such file"):
        create_executor(f"{tmp_path}/no.py:Mine", options)


# ---------------------------------------------------------------- entry points


@contextmanager
def installed(folder: Path, name: str, content: str, points: str) -> Iterator[None]:
    """Install a distribution of one module, as its metadata describes it."""
    (folder / f"{name}.py").write_text(content)
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(points)
    sys.path.insert(0, str(folder))
    extensions.installed_extensions.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)
        extensions.installed_extensions.cache_clear()
        registry.extension_info.cache_clear()


def test_entry_points_are_registered(
    tmp_path: Path, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = (
        "[shadowprice.policies]\nfirst_fit = lab_extension:FirstFit\nrolling = lab_extension:X\n"
        "broken = lab_extension:Missing\n"
        "[shadowprice.traces]\nlab = lab_extension:read_lab\n"
        "[shadowprice.executors]\nmine = lab_extension:LocalExecutor\n"
    )
    content = (
        SAMPLE.read_text()
        + IMPORTER
        + "\nfrom shadowprice.executors.local.executor import LocalExecutor\n"
    )
    with installed(tmp_path, "lab_extension", content, points):
        assert {"first_fit", "broken"} <= set(registry.policy_names())
        assert "first_fit" in registry.policies()
        assert "broken" not in registry.policies()
        assert registry.policy_info("rolling").extension is None
        assert main(["policies"]) == 0
        captured = capsys.readouterr()
        assert "first_fit" in captured.out
        assert captured.err.startswith(
            "note: shadowprice.policies: broken: can't be loaded from lab_"
        )
        out = tmp_path / "run"
        assert (
            main(["simulate", *WORKLOAD, "-p", "first_fit", "-s", "workers=max", "--out", str(out)])
            == 0
        )
        origin = json.loads((out / "run.json").read_text())["policy_origin"]
        assert (origin["distribution"], origin["version"]) == ("lab_extension", "1.2")
        assert len(origin["sha256"]) == 64
        assert read_trace(f"lab:{lab}/jobs.py:1.csv").jobs.height == 2
        options = ExecutorOptions(str(tmp_path / "executor"))
        assert type(create_executor("mine", options)).__name__ == "LocalExecutor"
        with pytest.raises(InputError, match="unknown executor 'mime'; did you mean 'mine'"):
            create_executor("mime", options)


def test_a_name_that_two_distributions_declare_is_refused_when_used(tmp_path: Path) -> None:
    points = "[shadowprice.policies]\ntwice = {}:FirstFit\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        installed(tmp_path / "one", "ext_one", SAMPLE.read_text(), points.format("ext_one")),
        installed(tmp_path / "two", "ext_two", SAMPLE.read_text(), points.format("ext_two")),
    ):
        assert "twice" in registry.policy_names()
        with pytest.raises(InputError, match=r"declared by ext_... and by ext_...; uninstall one"):
            registry.policy_info("twice")
