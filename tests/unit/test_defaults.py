"""Simulations, Python functions and the service have one default policy."""

from __future__ import annotations

import inspect

import typer

import shadowprice
from shadowprice.cli.main import app
from shadowprice.core.defaults import DEFAULT_POLICY
from shadowprice.service.settings import ServiceSettings

CLUSTER = {"slot": "1min", "servers": [{"name": "a", "capacity": {"gpu": 1}}]}
JOBS = [{"name": "job", "steps": 60, "minibatch_time": "1s", "worker": {"gpu": 1}}]


def test_commands_and_functions_have_the_policy_of_the_service() -> None:
    assert ServiceSettings.__dataclass_fields__["policy"].default_factory().name == DEFAULT_POLICY
    commands: dict[str, object] = {}
    for name in ("simulate", "serve"):
        command = typer.main.get_command(app).get_command(None, name)
        [option] = [option for option in command.params if option.name == "policy"]
        commands[name] = option.default
    assert commands == {"simulate": DEFAULT_POLICY, "serve": DEFAULT_POLICY}
    functions = {
        shadowprice.simulate: ("policy", DEFAULT_POLICY),
        shadowprice.compare: ("policies", (DEFAULT_POLICY, "fifo")),
        shadowprice.whatif: ("policies", DEFAULT_POLICY),
    }
    for function, (parameter, expected) in functions.items():
        assert inspect.signature(function).parameters[parameter].default == expected


def test_a_simulation_without_a_policy_is_one_of_the_service() -> None:
    assert shadowprice.simulate(CLUSTER, JOBS).policy == DEFAULT_POLICY
    gains = shadowprice.whatif(CLUSTER, JOBS).gains
    assert set(gains["policy"]) == {DEFAULT_POLICY}
