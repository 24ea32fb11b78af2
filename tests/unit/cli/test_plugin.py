"""``kubectl shadowprice``: what its command line says."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from shadowprice.cli.commands.submit import quote
from shadowprice.cli.main import main as run_command
from shadowprice.cli.plugin import COMMANDS, HELP, WITH_VALUES, main, read_words, split
from shadowprice.core.errors import InputError


def test_options_come_before_the_command_and_the_rest_is_the_commands() -> None:
    requested = read_words(
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
def test_what_is_no_call_says_what_would_be(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_words(words)


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["a.yaml", "-o", "json"], ["a.yaml"]),
        (["-o", "json", "a.yaml", "b.yaml"], ["a.yaml", "b.yaml"]),
        (["--output=json", "--only", "a", "-"], ["-"]),
        (["a.yaml", "-s"], ["a.yaml"]),
    ],
)
def test_what_follows_an_option_of_quote_is_its_value_and_no_manifest(
    words: list[str], files: list[str]
) -> None:
    found, options = split(words)
    assert found == files
    assert options == [word for word in words if word not in files]


def test_options_that_have_values_are_all_that_quote_has() -> None:
    app = typer.Typer()
    app.command()(quote)
    options = [
        param for param in typer.main.get_command(app).params if param.param_type_name == "option"
    ]
    named = {
        word for option in options if not getattr(option, "is_flag", False) for word in option.opts
    }
    assert named - {"--install-completion", "--show-completion"} == WITH_VALUES


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


def test_messages_of_kubectl_are_reported_without_the_log_of_its_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        "#!/bin/sh\n"
        "echo 'E1122 16:38:16.149091   28893 memcache.go:265] \"Unhandled Error\" err=...' >&2\n"
        "echo 'The connection to the server localhost:8080 was refused' >&2\n"
        "exit 1\n"
    )
    kubectl.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(kubectl))
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
