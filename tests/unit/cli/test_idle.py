"""Options that would do nothing are refused, and rules name options that there are."""

from __future__ import annotations

import pytest

from shadowprice.cli.idle import RULES
from shadowprice.cli.main import main
from tests.hostile.commands import commands

WORKLOAD = "-c c.yaml -j j.yaml"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (f"bound {WORKLOAD} --slot 0s", "--slot: is of the cluster that --trace brings"),
        (f"simulate {WORKLOAD} --load 2", "--load: is of the cluster that --trace brings"),
        ("simulate -c c.yaml --trace philly:x --slot 1h", "--slot: is of the cluster"),
        (f"audit sharing {WORKLOAD} --slot 1h", "--slot: is of the cluster that --trace brings"),
        (f"whatif {WORKLOAD} --load 1.0", "--load: is of the cluster that --trace brings"),
        (f"simulate {WORKLOAD} --advice-time 1min", "without --advice; add --advice"),
        (f"compare {WORKLOAD} -p fifo --bound-time 1s", "without --bound; add --bound"),
        ("generate --out x --preset pdors --parameter-servers 3", "whose servers carry both"),
        ("generate --out x --preset testbed --workers 3", "has the servers of its paper"),
        ("trace convert philly:x x.jsonl --horizon 9", "without --cluster; add --cluster"),
        ("explain job --no-advice", "--advice: is of a run"),
        ("explain run job --server lab", "--server: is of the live service"),
        ("statement ./run --limit 3", "--limit: is of the live service"),
        ("budget vision --note x", "--note: is of a grant"),
        ("tokens --expires 9d", "--expires: is of a token that is handed out"),
        ("tokens --revoke 3 --tenant a", "--revoke takes one back; call twice"),
        ("login --name lab", "--name: is of a server that is kept"),
        ("login --remove", "--remove: names no server"),
        ("profile --families f.yaml -- true", "without --family; add --family"),
    ],
)
def test_what_would_do_nothing_is_refused(
    call: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(call.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_defaults_are_no_options_that_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"simulate {WORKLOAD}".split()) == 2
    assert "c.yaml: no such file" in capsys.readouterr().err


def test_rules_name_commands_and_options_that_there_are() -> None:
    known = {" ".join(one.words): {option.name for option in one.options} for one in commands()}
    for name, rules in RULES.items():
        for rule in rules:
            assert set(rule.options) <= known[name], name
    # Whoever sizes a cluster to a trace says of what else these are.
    sized = {name for name, options in known.items() if {"slot", "load", "trace"} <= options}
    assert sized <= RULES.keys()
