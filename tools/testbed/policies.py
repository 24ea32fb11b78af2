"""Enforcement of network policies: a CNI plugin, called after the plugin that creates the network.

iptables rules in a pod's network namespace accept or reject its packets before its first process
starts. They implement the policies of the pod's namespace at that moment; changes only apply to
later pods. Peers selected by labels of pods or namespaces aren't supported. A pod that is selected
by a policy with such a peer fails to start, because the policy can't be enforced. The plugin runs
for every pod, so this file only needs the standard library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

NAME: Final = "testbed-policies"
"""The plugin's name in a network configuration."""

REFUSED: Final = ("-j", "REJECT", "--reject-with", "icmp-admin-prohibited")
"""Rejects packets that no rule accepts, so that the client gets an error at once."""


class UnknownPolicyError(Exception):
    """A policy uses a feature that is not enforced here."""


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches labels."""
    wanted = (selector.get("matchLabels") or {}).items()
    if any(labels.get(key) != value for key, value in wanted):
        return False
    for expression in selector.get("matchExpressions") or ():
        key, values = expression["key"], expression.get("values") or ()
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not holds[expression["operator"]]:
            return False
    return True


def rules_of(
    policies: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    ports: Mapping[str, int] | None = None,
) -> list[list[str]]:
    """Return the iptables commands that accept exactly what the policies allow.

    Parameters
    ----------
    policies : sequence of mapping
        Policies of the pod's namespace.
    labels : mapping
        Labels of the pod.
    ports : mapping, optional
        Numbers of the ports that its containers name.

    Raises
    ------
    UnknownPolicyError
        If a policy that selects the pod uses a feature that is not enforced here.
    """
    specs = [policy["spec"] for policy in policies]
    chosen = [spec for spec in specs if selects(spec["podSelector"], labels)]
    commands: list[list[str]] = []
    for kind, field, chain, interface, peers, address in (
        ("Ingress", "ingress", "INPUT", "-i", "from", "-s"),
        ("Egress", "egress", "OUTPUT", "-o", "to", "-d"),
    ):
        own = [spec for spec in chosen if kind in _kinds(spec)]
        if not own:
            continue
        commands.append(["-A", chain, interface, "lo", "-j", "ACCEPT"])
        for rule in (rule for spec in own for rule in spec.get(field) or ()):
            for words in _ports(rule.get("ports"), ports or {}):
                commands += [
                    ["-A", chain, *more, *words, "-j", "ACCEPT"]
                    for more in _peers(rule.get(peers), address)
                ]
        # Only packets that open a connection are rejected. On a busy machine, the kernel may fail
        # to assign a packet to its accepted connection, which a rejection would end.
        commands.append(["-A", chain, "-m", "conntrack", "--ctstate", "NEW", *REFUSED])
    return commands


def _kinds(spec: Mapping[str, Any]) -> Sequence[str]:
    """Return the policy's types; without any, Kubernetes derives them from its rules."""
    stated: Sequence[str] = spec.get("policyTypes") or ()
    return stated or ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _ports(ports: Sequence[Mapping[str, Any]] | None, named: Mapping[str, int]) -> Iterator[Any]:
    if not ports:
        yield []
    for entry in ports or ():
        words = ["-p", str(entry.get("protocol", "TCP")).lower()]
        port = entry.get("port")
        if isinstance(port, str):
            if port not in named:
                continue  # no container of this pod has a port of this name
            port = named[port]
        if port is not None:
            words += ["--dport", f"{port}:{entry['endPort']}" if "endPort" in entry else str(port)]
        yield words


def _peers(peers: Sequence[Mapping[str, Any]] | None, address: str) -> Iterator[list[str]]:
    if not peers:
        yield []
    for peer in peers or ():
        block = peer.get("ipBlock")
        if block is None or block.get("except"):
            raise UnknownPolicyError(f"unsupported peer {peer}; use ipBlock")
        yield [address, block["cidr"]]


# ---------------------------------------------------------------------- the plugin


def main() -> int:
    """Run as a CNI plugin: configuration on standard input, the pod in the environment."""
    command = os.environ.get("CNI_COMMAND", "")
    config = json.load(sys.stdin)
    if command == "VERSION":
        print(json.dumps({"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}))
    elif command == "ADD":
        try:
            enforce(Path(config["kubectl"]), Path(config["kubeconfig"]))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            print(json.dumps({"cniVersion": "0.4.0", "code": 100, "msg": message}))
            return 1
        print(json.dumps(config["prevResult"]))
    return 0  # for DEL and CHECK, because the rules end with the pod's network


def enforce(kubectl: Path, kubeconfig: Path) -> None:
    """Read the pod and the policies of its namespace, and install the rules in its network."""
    pairs = [pair for pair in os.environ["CNI_ARGS"].split(";") if "=" in pair]
    arguments = dict(pair.split("=", 1) for pair in pairs)
    namespace = arguments["K8S_POD_NAMESPACE"]
    get = [str(kubectl), "--kubeconfig", str(kubeconfig), "-n", namespace, "get", "-o", "json"]
    policies = json.loads(_output([*get, "networkpolicies"]))["items"]
    if not policies:
        return
    pod = json.loads(_output([*get, "pod", arguments["K8S_POD_NAME"]]))
    ports = {
        port["name"]: int(port["containerPort"])
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or ()
        if "name" in port
    }
    inside = ["nsenter", f"--net={os.environ['CNI_NETNS']}", "iptables", "-w"]
    for words in rules_of(policies, pod["metadata"].get("labels") or {}, ports):
        _output([*inside, *words])


def _output(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise OSError(f"{argv[0]}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
