"""Parameters from files and options, layered; the list of a policy's parameters."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from shadowprice.cli.commands.policies import parameter_rows
from shadowprice.cli.main import main
from shadowprice.cli.options import policy_choice, policy_settings, read_choices
from shadowprice.core.errors import InputError
from shadowprice.policies import registry
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import Parameters, PolicyInfo
from shadowprice.results.metric_definitions import best_positions
from tests.support.flat_rate import INFO
from tests.support.waiting import WAIT_LIMIT_SECONDS


class Inner(Parameters):
    depth: int = Field(default=2, description="how deep")


class Rich(Parameters):
    price: float = 1.0
    mode: Literal["fast", "exact"] = "exact"
    inner: Inner = Inner()
    table: dict[str, float] | None = None
    needed: bool


RICH = PolicyInfo("rich", "", "", Rich, "nowhere:nothing")


@pytest.fixture(autouse=True)
def _two_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "builtin_policies", lambda: {"flat-rate": INFO, "rich": RICH})


def test_options_come_after_the_file_and_tables_are_for_one_policy(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("price = 3\n[rich]\nmode = 'fast'\n[rich.inner]\ndepth = 5\n")
    both = [INFO, RICH]
    assert policy_settings(path, None, both) == {
        "flat-rate": {"price": 3},
        "rich": {"price": 3, "mode": "fast", "inner": {"depth": 5}},
    }
    given = ["price=4", "rich.inner.depth=6", "inner.depth=7", "table={a = 1.5}", "rich.price=5"]
    assert policy_settings(path, given, both) == {
        "flat-rate": {"price": "4"},
        "rich": {"price": "5", "mode": "fast", "inner": {"depth": "7"}, "table": {"a": 1.5}},
    }
    assert policy_settings(path, None, [INFO]) == {"flat-rate": {"price": 3}}


def test_a_policy_of_a_file_has_a_table_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("price = 3\n[lab.Rich]\nmode = 'fast'\n")
    of_file = replace(RICH, name="lab.Rich")
    assert policy_settings(path, ["lab.Rich.needed=yes"], [INFO, of_file]) == {
        "flat-rate": {"price": 3},
        "lab.Rich": {"price": 3, "mode": "fast", "needed": "yes"},
    }


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("price", "write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        ("price=", "write KEY=VALUE"),
        ("prise=3", "no policy of flat-rate, rich has it"),
        ("table={a", "is not TOML"),
    ],
)
def test_wrong_pairs_are_reported(pair: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policy_settings(None, [pair], [INFO, RICH])


def test_a_setting_of_a_policy_that_does_not_run_is_a_mistake() -> None:
    with pytest.raises(InputError, match="'rich' is not among the policies"):
        policy_settings(None, ["rich.mode=fast"], [INFO])


def test_commands_of_one_policy_read_parameters_after_its_name() -> None:
    choice = policy_choice("rich?price=2&inner.depth=3", None, ["price=1", "mode=fast"])
    assert choice.name == "rich"
    assert choice.settings == {"price": "2", "mode": "fast", "inner": {"depth": "3"}}
    assert choice.label == PolicyChoice("rich", choice.settings).label


def test_policies_and_settings_are_bounded() -> None:
    with pytest.raises(InputError, match="51 exceeds the limit of 50 policies compared"):
        read_choices([",".join(["rich"] * 51)])
    with pytest.raises(InputError, match="1,001 exceeds the limit of 1,000 parameters set"):
        read_choices(["rich?" + "&".join(["a=1"] * 1001)])
    with pytest.raises(InputError, match="--set: 1,001 exceeds the limit"):
        policy_settings(None, ["a=1"] * 1001, [RICH])
    with pytest.raises(InputError, match="policy rich: 1,001 exceeds the limit"):
        registry.policy_parameters("rich", {"table": {f"k{n}": 1 for n in range(1001)}})


def test_parameters_are_listed_by_dotted_name() -> None:
    rows = {row["name"]: row for row in parameter_rows(Rich)}
    assert list(rows) == ["price", "mode", "inner.depth", "table", "needed"]
    assert rows["mode"]["type"] == "fast | exact"
    assert rows["inner.depth"] == {
        "name": "inner.depth",
        "type": "int",
        "default": "2",
        "description": "how deep",
    }
    assert rows["table"]["type"] == "table of float"
    assert rows["needed"]["default"] == "required"


def test_the_best_is_marked_only_where_one_is_better() -> None:
    assert best_positions([1.0, 3.0, 3.0, None], 1) == {1, 2}
    assert best_positions([1.0, 3.0], -1) == {0}
    assert best_positions([2.0, 2.0], 1) == set()
    assert best_positions([1.0, 2.0], 0) == set()


def test_help_costs_no_numerics() -> None:
    code = (
        "import sys; from shadowprice.cli.main import main; status = main(['--help']); "
        "heavy = {'numba', 'polars', 'plotly', 'numpy', 'scipy', 'pydantic'} & set(sys.modules); "
        "print(sorted(heavy), status, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.stderr.strip() == "[] 0"
    assert "simulate" in done.stdout


def test_help_fills_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["until", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index("Plans stop at the end. At the end, running jobs are")
    assert lines[start + 1] == "stopped with their grace period, and wait until the end is"


def test_a_service_begins_without_tables() -> None:
    pytest.importorskip("uvicorn")
    code = "import sys, shadowprice.service.server; print('polars' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.stdout == "False\n"


@pytest.mark.extended
@pytest.mark.parametrize("command", ["simulate", "compare -p fifo", "bound", "whatif"])
def test_a_wrong_file_waits_for_no_compiler(tmp_path: Path, command: str) -> None:
    wrong, cluster = tmp_path / "jobs.yaml", tmp_path / "cluster.yaml"
    wrong.write_text("jobs: [" + "1," * 1_000_000 + "1]\n")
    cluster.write_text("slot: 1min\nservers: [{name: s, capacity: {gpu: 8}}]\n")
    code = (
        "import sys; from shadowprice.cli.main import main; "
        f"status = main([*{command.split()}, '-c', {str(cluster)!r}, '-j', {str(wrong)!r}]); "
        "print('numba' in sys.modules, status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.stdout.split() == ["False", "2"]
    assert "exceeds the limit of 250,000 values" in done.stderr


def test_a_wrong_pair_is_reported_with_its_location() -> None:
    for text, place in (
        ("rich?x", "--policy rich: 'x' is not a parameter"),
        ("rich?x=[", "--policy rich 'x'"),
    ):
        with pytest.raises(InputError) as caught:
            read_choices([text])
        assert str(caught.value).startswith(place)


def test_a_tilde_is_the_home_directory_in_every_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shells don't expand it after ``--out=``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (
        ["bound", "--cluster=~/c.yaml", "-j", "j.yaml"],
        ["bound", "-j", "~/c.yaml", "--cluster=~/c.yaml"],
        ["quote", "~/c.yaml", "-s", "http://127.0.0.1:1"],
        ["backup", "~/c.yaml", "x"],
    ):
        assert main(words) == 2, words
        assert f"error: {tmp_path}/c.yaml: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--max-overrun", "0.5"], "'--max-overrun': must be at least 1, got '0.5';"),
        (["queue", "--limit", "ten"], "'--limit': expected an integer, got 'ten';"),
    ],
)
def test_limits_of_options_are_in_our_words(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err
