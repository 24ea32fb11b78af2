"""A policy with its parameters: parsed, named, shown by a command, built."""

from __future__ import annotations

import pytest

from shadowprice.cli import options
from shadowprice.core.errors import InputError
from shadowprice.core.policy import PolicyContext
from shadowprice.core.specs import ClusterSpec
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import policy_info


def test_text_of_a_choice_parses_to_the_same_choice() -> None:
    read = PolicyChoice.parse("dorm?window=4&gap=0.1")
    assert (read.name, read.settings) == ("dorm", {"window": "4", "gap": "0.1"})
    assert read.label == "dorm window=4 gap=0.1"
    assert PolicyChoice("dorm", {"window": 4, "gap": 0.1}).label == read.label
    assert PolicyChoice("oasis", {"prices": "online"}, "the paper's").label == "the paper's"


def test_own_parameters_override_shared_ones_and_keep_the_label() -> None:
    shared = {"prices": "online", "lower": {"rule": "a", "share": 1}}
    chosen = PolicyChoice("oasis", {"lower": {"rule": "b"}}).merged_over(shared)
    assert chosen.settings == {"prices": "online", "lower": {"rule": "b", "share": 1}}
    assert chosen.label == "oasis lower.rule=b"
    assert shared["lower"] == {"rule": "a", "share": 1}


def test_command_line_of_a_choice_parses_to_the_same_choice() -> None:
    settings = {"a": True, "b": {"c": 0.1, "d": "online"}, "e": [1, 2], "f": 4}
    argv = PolicyChoice("oasis", settings).argv()
    assert argv[:2] == ["--policy", "oasis"]
    read = options.policy_settings(None, argv[3::2], [policy_info("oasis")])["oasis"]
    assert read == {"a": "true", "b": {"c": "0.1", "d": "online"}, "e": [1, 2], "f": "4"}


def test_choice_builds_its_policy_or_reports_the_error() -> None:
    servers = [{"name": "s", "capacity": {"gpu": 8}}]
    on = ClusterSpec.model_validate({"slot": "1min", "servers": servers}).resolve()
    choice = PolicyChoice("oasis", {"prices": "online"})
    assert choice.build(PolicyContext(on)).parameters_in_force()["prices"]
    assert choice.parameters().preset == "none"
    with pytest.raises(InputError, match=r"unknown policy 'oasys'.*did you mean 'oasis'"):
        PolicyChoice.parse("oasys")
    with pytest.raises(InputError, match="--policy oasis: 'prices' is not a parameter"):
        PolicyChoice.parse("oasis?prices")
    with pytest.raises(InputError, match=r"policy optimum.*needs to know all jobs"):
        PolicyChoice("optimum").build(PolicyContext(on))
