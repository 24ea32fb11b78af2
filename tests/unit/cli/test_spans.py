"""Options that are durations: an error names its option."""

import pytest

from shadowprice.cli.main import main


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", "'3' is a duration without a unit"),
        ("0s", "'0s' is not a positive time; write "),
        ("3 slots", "'3 slots' is in slots, not on the clock; write "),
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
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    command = ["--", "true"] if call == "profile" else []
    assert main([*call.split(), option, value, *command]) == 2
    assert f"error: {option}: {message}" in capsys.readouterr().err
