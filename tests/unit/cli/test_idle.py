"""Options that would have no effect are refused, and rules name existing options."""

from __future__ import annotations

from dataclasses import fields

import pytest

from shadowprice.cli.lazy import RULES
from shadowprice.cli.main import main
from shadowprice.cli.options import Workload
from tests.hostile.commands import commands

WORKLOAD = "-c c.yaml -j j.yaml"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            f"bound {WORKLOAD} --slot 0s",
            "--slot: applies only to the cluster that is sized to --trace",
        ),
        (
            f"simulate {WORKLOAD} --load 2",
            "--load: applies only to the cluster that is sized to --trace",
        ),
        ("simulate -c c.yaml --trace philly:x --slot 1h", "--slot: applies only to the cluster"),
        (
            f"audit sharing {WORKLOAD} --slot 1h",
            "--slot: applies only to the cluster that is sized to --trace",
        ),
        (
            f"whatif {WORKLOAD} --load 1.0",
            "--load: applies only to the cluster that is sized to --trace",
        ),
        (f"simulate {WORKLOAD} --advice-time 1min", "without --advice; add --advice"),
        (f"compare {WORKLOAD} -p fifo --bound-time 1s", "without --bound; add --bound"),
        (
            "generate --out x --preset pdors --parameter-servers 3",
            "whose servers run workers and parameter servers",
        ),
        ("generate --out x --preset testbed --workers 3", "uses the servers of its paper"),
        ("trace convert philly:x x.jsonl --horizon 9", "without --cluster; add --cluster"),
        ("explain run job --server lab", "--server: applies to the live service only"),
        ("statement ./run --limit 3", "--limit: applies to the live service only"),
        ("statement ./run --since 7d", "--since: applies to the live service only"),
        ("statement ./run --server lab", "--server: applies to the live service only"),
        ("statement vision --tenant a", "--tenant: applies to runs only; name only the tenant"),
        ("whatif --server lab --seed 5", "--seed: not valid with a live service, which has its"),
        ("whatif --server lab --map submit=a", "--map: not valid with a live service"),
        ("whatif --days 3 --slot 20min", "--slot: not valid with a live service"),
        ("budget vision --note x", "--note: applies to grants only"),
        ("tokens --expires 9d", "--expires: applies only to issuing a token"),
        ("tokens --revoke 3 --tenant a", "not valid with --revoke; run the command twice"),
        ("login --name lab", "--name: applies only to saving a server"),
        ("login --remove", "--remove: requires the name of a server"),
        ("profile --families f.yaml -- true", "without --family; add --family"),
        ("profile --minibatches 9 -- true", "--minibatches: has no effect without --out"),
        ("experiment all --listen 0.0.0.0:0", "--listen: has no effect without --executor"),
        ("cloning simulate c.yaml --copies 2 --method exact", "--method: has no effect with"),
        ("cloning waves c.yaml --rule none --machine-price 1", "without the rule saving"),
    ],
)
def test_options_without_effect_are_refused(
    call: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(call.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_defaults_are_no_options_that_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"simulate {WORKLOAD}".split()) == 2
    assert "c.yaml: no such file" in capsys.readouterr().err


def test_rules_name_commands_and_options_that_there_are() -> None:
    known = {
        " ".join(command.words): {option.name for option in command.options}
        for command in commands()
    }
    for name, rules in RULES.items():
        for rule in rules:
            assert set(rule.options) <= known[name], name
    # If a cluster is sized to a trace, these options describe its servers.
    assert {field.name for field in fields(Workload)} <= set(RULES["whatif"][0].options)
    sized = {name for name, options in known.items() if {"slot", "load", "trace"} <= options}
    assert sized <= RULES.keys()
