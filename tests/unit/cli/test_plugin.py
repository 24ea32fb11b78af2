"""``kubectl shadowprice``: its command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from shadowprice.cli.commands.explain import explain
from shadowprice.cli.commands.follow import logs
from shadowprice.cli.commands.queue import status
from shadowprice.cli.commands.submit import quote
from shadowprice.cli.main import main as run_command
from shadowprice.cli.plugin import (
    COMMANDS,
    HELP,
    WITH_VALUES,
    Kubectl,
    PluginCall,
    main,
    parse_call,
    split_arguments,
)
from shadowprice.core.errors import InputError
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

RUN = "from shadowprice.cli.plugin import run; run()"


@pytest.fixture
def fake_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the path of a shell script that replaces kubectl."""
    path = tmp_path / "kubectl"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(path))
    monkeypatch.setenv("SHADOWPRICE_TOKEN", "sp_token")
    monkeypatch.setenv("SHADOWPRICE_SERVER", "http://127.0.0.1:1")
    return path


def test_options_come_before_the_command_and_the_rest_is_the_commands() -> None:
    requested = parse_call(
        ["-n", "vision", "--context=prod", "--service", "ml/prices", "logs", "a", "-f", "-n", "3"]
    )
    assert requested.namespace == "vision"
    assert requested.kubectl == ["--context=prod"]
    assert requested.service == "ml/prices"
    assert requested.words == ["logs", "a", "-f", "-n", "3"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explian", "a"], "did you mean 'explain'"),
        (["--unknown=1", "explain"], "--unknown: unknown option"),
        (["-n"], "-n: requires a value"),
        (["-n", "a"], "no command"),
        (["--service", "only", "prices"], "NAMESPACE/NAME"),
        (["serve"], "no command"),
    ],
)
def test_an_invalid_call_gets_the_valid_form(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_call(words)


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["a.yaml", "-o", "json"], ["a.yaml"]),
        (["-o", "json", "a.yaml", "b.yaml"], ["a.yaml", "b.yaml"]),
        (["--output=json", "--only", "a", "-"], ["-"]),
        (["a.yaml", "-s"], ["a.yaml"]),
    ],
)
def test_the_value_of_an_option_of_quote_is_no_manifest(words: list[str], files: list[str]) -> None:
    found, options = split_arguments(words)
    assert found == files
    assert options == [word for word in words if word not in files]


def test_options_with_values_are_those_of_the_commands_that_are_split() -> None:
    named = set()
    for command in (quote, explain, status, logs):
        app = typer.Typer(add_completion=False)
        app.command()(command)
        named |= {
            word
            for param in typer.main.get_command(app).params
            if param.param_type_name == "option" and not getattr(param, "is_flag", False)
            for word in param.opts
        }
    assert named == WITH_VALUES


@pytest.mark.parametrize(
    "words",
    [
        ["logs", "a"],
        ["logs", "-f", "a"],
        ["logs", "--process", "ps-0", "-fg", "2", "a"],
        ["explain", "--full", "a"],
        ["status", "-o", "json", "a"],
    ],
)
def test_a_job_is_a_trainingjob_wherever_its_name_is(
    words: list[str], fake_kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_kubectl.write_text('#!/bin/sh\necho "$*" >&2\nexit 1\n')
    assert main(["-n", "vision", *words]) == 2
    assert capsys.readouterr().err == (
        "error: kubectl: --namespace=vision get trainingjobs.shadowprice.io -o json -- a\n"
    )


def test_manifests_are_read_from_stdin(fake_kubectl: Path) -> None:
    fake_kubectl.write_text("#!/bin/sh\ncat\n")
    manifest = {"kind": "TrainingJob", "metadata": {"name": "a"}, "spec": {"steps": 3}}
    code = (
        "import json; from shadowprice.cli.plugin import Kubectl, PluginCall; "
        "print(json.dumps(Kubectl(PluginCall()).manifests(['-'])))"
    )
    printed = subprocess.check_output(
        [sys.executable, "-c", code],
        input=json.dumps(manifest).encode(),
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert json.loads(printed) == [{"steps": 3, "name": "a"}]


def test_a_forwarded_port_stays_open_after_many_connections(
    fake_kubectl: Path, tmp_path: Path
) -> None:
    """kubectl writes a line for each connection; a pipe without a reader would block it."""
    fake_kubectl.write_text(
        "#!/bin/sh\n"
        "echo 'Forwarding from 127.0.0.1:4321 -> 8642'\n"
        "yes 'Handling connection for 4321' | head -10000\n"
        f"touch {tmp_path}/handled\n"
        "exec sleep 1000\n"
    )
    with Kubectl(PluginCall()).forwarded("ml/prices") as address:
        assert address == "http://127.0.0.1:4321"
        wait_until((tmp_path / "handled").exists)


def test_a_port_that_cant_be_forwarded_is_an_error_with_kubectls_message(
    fake_kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_kubectl.write_text("#!/bin/sh\necho no pods >&2\nexit 1\n")
    assert main(["prices"]) == 2
    assert capsys.readouterr().err == "error: kubectl: no pods\n"


def test_a_closed_pipe_ends_the_plugin_silently() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()  # before the plugin, which imports first, writes
    assert process.wait(WAIT_LIMIT_SECONDS) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == HELP
    assert all(name in HELP for name in COMMANDS)


def test_without_kubectl_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("KUBECTL", raising=False)
    assert main(["prices"]) == 2
    assert "put it on the PATH" in capsys.readouterr().err
    monkeypatch.setenv("KUBECTL", "/nowhere/kubectl")
    assert main(["prices"]) == 2
    assert capsys.readouterr().err == (
        "error: /nowhere/kubectl: is not found; put it on the PATH\n"
    )


def test_messages_of_kubectl_are_reported_without_the_log_of_its_library(
    fake_kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_kubectl.write_text(
        "#!/bin/sh\n"
        "echo 'E1122 16:38:16.149091   28893 memcache.go:265] \"Unhandled Error\" err=...' >&2\n"
        "echo 'The connection to the server localhost:8080 was refused' >&2\n"
        "exit 1\n"
    )
    assert main(["explain", "a"]) != 0
    said = capsys.readouterr().err
    assert said == "error: kubectl: The connection to the server localhost:8080 was refused\n"


def test_hints_name_the_program_that_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECTL", "true")
    monkeypatch.setenv("SHADOWPRICE_TOKEN", "sp_token")
    monkeypatch.setenv("SHADOWPRICE_SERVER", "http://127.0.0.1:1")
    for words, hint in (
        (["budget", "--grant", "5"], "name it: {} budget NAME"),
        (["prices", "--unknown"], "see {} prices --help"),
    ):
        assert main(["--server", "http://127.0.0.1:1", *words]) == 2
        assert hint.format("kubectl shadowprice") in capsys.readouterr().err
        assert run_command(words) == 2
        error = capsys.readouterr().err
        assert hint.format("shadowprice") in error
        assert "kubectl" not in error
