"""The testbed's enforcement of network policies, against their definition in Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from tools.testbed.policies import UnknownPolicyError, rules_of, selects

LABELS = {"app": "a", "tier": "web"}


def policy(**spec: Any) -> dict[str, Any]:
    return {"spec": {"podSelector": {}, **spec}}


def passes(rules: list[list[str]], chain: str, protocol: str, port: int) -> bool:
    """Walk rules as a kernel does, for the first packet of a connection between two machines."""
    for words in rules:
        fields = dict(zip(words[::2], words[1::2], strict=False))
        if fields["-A"] != chain or fields.get("-i") == "lo" or fields.get("-o") == "lo":
            continue
        if fields.get("--ctstate", "NEW") != "NEW" or fields.get("-p", protocol) != protocol:
            continue
        low, _, high = fields.get("--dport", f"{port}").partition(":")
        if int(low) <= port <= int(high or low):
            return fields["-j"] == "ACCEPT"
    return True


def test_a_pod_that_no_policy_chooses_is_left_alone() -> None:
    other = policy(podSelector={"matchLabels": {"app": "b"}}, policyTypes=["Ingress", "Egress"])
    assert rules_of([other], LABELS) == []
    assert rules_of([], LABELS) == []


def test_a_selected_pod_gets_the_traffic_of_any_policy() -> None:
    first = policy(ingress=[{"ports": [{"port": 80}]}], policyTypes=["Ingress"])
    second = policy(ingress=[{"ports": [{"port": 90, "protocol": "UDP"}]}])
    rules = rules_of([first, second], LABELS)
    assert passes(rules, "INPUT", "tcp", 80)
    assert passes(rules, "INPUT", "udp", 90)
    assert not passes(rules, "INPUT", "tcp", 90)
    assert not passes(rules, "INPUT", "udp", 80)
    assert passes(rules, "OUTPUT", "tcp", 1)  # neither has a rule for it


def test_no_rule_is_nothing_and_an_empty_rule_is_everything() -> None:
    assert not passes(rules_of([policy(policyTypes=["Egress"])], LABELS), "OUTPUT", "tcp", 1)
    everything = rules_of([policy(policyTypes=["Egress"], egress=[{}])], LABELS)
    assert passes(everything, "OUTPUT", "udp", 1)


def test_ports_are_ranges_and_names_too() -> None:
    ports = [{"port": 100, "endPort": 200}, {"port": "http"}, {"port": "nobody-names-it"}]
    rules = rules_of([policy(ingress=[{"ports": ports}])], LABELS, {"http": 8642})
    assert [passes(rules, "INPUT", "tcp", one) for one in (99, 100, 200, 201, 8642)] == [
        False, True, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "values", "chosen"),
    [
        ("In", ["a", "b"], True), ("In", ["b"], False), ("NotIn", ["b"], True),
        ("NotIn", ["a"], False), ("Exists", None, True), ("DoesNotExist", None, False),
    ],
)  # fmt: skip
def test_selectors(operator: str, values: list[str] | None, chosen: bool) -> None:
    one = {"key": "app", "operator": operator, "values": values}
    assert selects({"matchExpressions": [one]}, LABELS) == chosen
    assert not selects({"matchExpressions": [one], "matchLabels": {"tier": "db"}}, LABELS)


@pytest.mark.parametrize(
    "peer", [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]
)
def test_unsupported_rules_are_reported_and_not_left_out(peer: dict[str, Any]) -> None:
    with pytest.raises(UnknownPolicyError):
        rules_of([policy(ingress=[{"from": [peer]}])], LABELS)
    block = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    [*_, rule, _] = rules_of([policy(ingress=[{"from": [block]}])], LABELS)
    assert rule == ["-A", "INPUT", "-s", "10.0.0.0/8", "-j", "ACCEPT"]
