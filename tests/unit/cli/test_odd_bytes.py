"""Arguments that aren't UTF-8, as Python represents their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.client.endpoints import normalize_url
from shadowprice.core.errors import InputError
from tests.support.command_line import CLUSTER, JOBS

ODD = "half\udcff"


def test_paths_that_are_no_text_are_used_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{ODD}.yaml").write_text(CLUSTER)
    Path(f"j{ODD}.yaml").write_text(JOBS)
    files = ("-c", f"{ODD}.yaml", "-j", f"j{ODD}.yaml")
    assert main(["simulate", *files, "-p", "fifo", "-q", "--journal", "--out", ODD]) == 0
    for words in (["explain", ODD, "first"], ["jobs", ODD], ["journal", ODD], ["report", ODD]):
        assert main(words) == 0, words
    assert main(["explain", ODD, ODD]) == 2
    captured = capsys.readouterr()
    assert "unknown job" in captured.err
    assert r"half\udcff" in captured.err


def test_a_value_that_must_be_text_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("httpx")
    assert main(["status", ODD]) == 2
    assert r"'half\udcff' contains bytes that are not valid text" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host", [ODD, "\N{COLLISION SYMBOL}", "münchen.example", "../..", "a" * 70]
)
def test_an_address_is_sent_as_written(host: str) -> None:
    with pytest.raises(InputError, match="is not a valid address of a service"):
        normalize_url(f"http://{host}")
    assert normalize_url("http://xn--mnchen-3ya.example/") == "http://xn--mnchen-3ya.example"
