"""Options that are lengths of time: what is wrong with one is said with its name."""

import pytest

from shadowprice.cli.main import main


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("3", "'3' is a duration without a unit"),
        ("0s", "expected a duration, got '0s'; write "),
        ("3 slots", "expected a duration, got '3 slots'; write "),
        ("-1d", "'-1d' is negative"),
    ],
)
@pytest.mark.parametrize(
    ("call", "option"),
    [
        ("generate --out made", "--slot"),
        ("simulate -c c -j j --advice --out made", "--advice-time"),
        ("compare -c c -j j -p fifo --bound", "--bound-time"),
        ("compare -c c -j j -p fifo --advice --out made", "--advice-time"),
        ("bound -c c -j j", "--time"),
        ("profile", "--time"),
        ("profile", "--grace"),
        ("serve -c c", "--keep"),
        ("tokens --tenant a", "--expires"),
    ],
)
def test_a_length_of_time_that_is_none_is_refused_with_its_option(
    call: str,
    option: str,
    value: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    command = ["--", "true"] if call == "profile" else []
    assert main([*call.split(), option, value, *command]) == 2
    assert f"error: {option}: {told}" in capsys.readouterr().err
