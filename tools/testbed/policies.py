"""Enforcement of network policies: a CNI plugin, called after the one that creates the network.

Rules in a pod's own network accept or reject its packets, from before its first process on. They
follow the policies of its namespace for its labels at that moment; later changes apply to later
pods. Peers that are selected by labels of pods or namespaces aren't supported: a policy with any
lets no pod start, so that it isn't enforced wrongly. The plugin runs for every pod, so this file
needs only the standard library.
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
    for one in selector.get("matchExpressions") or ():
        key, values = one["key"], one.get("values") or ()
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not holds[one["operator"]]:
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
    chosen = [one["spec"] for one in policies if selects(one["spec"]["podSelector"], labels)]
    found: list[list[str]] = []
    for kind, field, chain, interface, peers, address in (
        ("Ingress", "ingress", "INPUT", "-i", "from", "-s"),
        ("Egress", "egress", "OUTPUT", "-o", "to", "-d"),
    ):
        own = [spec for spec in chosen if kind in _kinds(spec)]
        if not own:
            continue
        found.append(["-A", chain, interface, "lo", "-j", "ACCEPT"])
        for rule in (rule for spec in own for rule in spec.get(field) or ()):
            for words in _ports(rule.get("ports"), ports or {}):
                found += [
                    ["-A", chain, *more, *words, "-j", "ACCEPT"]
                    for more in _peers(rule.get(peers), address)
                ]
        # Policies are about connections. On a busy machine the kernel may not assign a packet to
        # its accepted connection, and a rejection would break that.
        found.append(["-A", chain, "-m", "conntrack", "--ctstate", "NEW", *REFUSED])
    return found


def _kinds(spec: Mapping[str, Any]) -> Sequence[str]:
    told: Sequence[str] = spec.get("policyTypes") or ()
    return told or ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _ports(ports: Sequence[Mapping[str, Any]] | None, named: Mapping[str, int]) -> Iterator[Any]:
    if not ports:
        yield []
    for one in ports or ():
        words = ["-p", str(one.get("protocol", "TCP")).lower()]
        port = one.get("port")
        if isinstance(port, str):
            if port not in named:
                continue  # no container of this pod has a port of this name
            port = named[port]
        if port is not None:
            words += ["--dport", f"{port}:{one['endPort']}" if "endPort" in one else str(port)]
        yield words


def _peers(peers: Sequence[Mapping[str, Any]] | None, address: str) -> Iterator[list[str]]:
    if not peers:
        yield []
    for one in peers or ():
        block = one.get("ipBlock")
        if block is None or block.get("except"):
            raise UnknownPolicyError(f"unsupported peer {one}; use ipBlock")
        yield [address, block["cidr"]]


# ---------------------------------------------------------------------- the plugin


def main() -> int:
    """Run as a CNI plugin: configuration on standard input, the pod in the environment."""
    asked = os.environ.get("CNI_COMMAND", "")
    told = json.load(sys.stdin)
    if asked == "VERSION":
        print(json.dumps({"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}))
    elif asked == "ADD":
        try:
            enforce(Path(told["kubectl"]), Path(told["kubeconfig"]))
        except Exception as error:
            said = {"cniVersion": "0.4.0", "code": 100, "msg": f"{type(error).__name__}: {error}"}
            print(json.dumps(said))
            return 1
        print(json.dumps(told["prevResult"]))
    return 0


def enforce(kubectl: Path, kubeconfig: Path) -> None:
    """Get the pod and the policies of its namespace, and install the rules in its network."""
    named = dict(one.split("=", 1) for one in os.environ["CNI_ARGS"].split(";") if "=" in one)
    space = named["K8S_POD_NAMESPACE"]
    ask = [str(kubectl), "--kubeconfig", str(kubeconfig), "-n", space, "get", "-o", "json"]
    policies = json.loads(_said([*ask, "networkpolicies"]))["items"]
    if not policies:
        return
    pod = json.loads(_said([*ask, "pod", named["K8S_POD_NAME"]]))
    ports = {
        port["name"]: int(port["containerPort"])
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or ()
        if "name" in port
    }
    inside = ["nsenter", f"--net={os.environ['CNI_NETNS']}", "iptables", "-w"]
    for words in rules_of(policies, pod["metadata"].get("labels") or {}, ports):
        _said([*inside, *words])


def _said(words: Sequence[str]) -> str:
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if found.returncode:
        raise OSError(f"{words[0]}: {found.stderr.strip()}")
    return found.stdout


if __name__ == "__main__":
    sys.exit(main())
