"""Write down which kernels each policy calls, and with which types, for compiling them beforehand.

Runs small workloads under every policy twice over: once in one process with an empty cache, to see
which kernels call which, and once in a process for each policy, to see what it calls itself.
`shadowprice.kernels.warming` reads what this writes.

Run after changing a kernel's arguments: ``python -m benchmarks.record_kernels [POLICY...]``; with
names, only these policies are recorded and the others kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from shadowprice.kernels.manifest import BAGS, groups_of

EXAMPLES: Final = Path(__file__).parents[1] / "examples"
MANIFEST: Final = Path(__file__).parents[1] / "src/shadowprice/kernels/manifest.json"
PLACES: Final = """\
slot: 20min
horizon: 40
servers: [{name: s, count: 4, capacity: {worker: 4, ps: 2}}]
tenants: [{name: one, share: {worker: 8, ps: 4}}, {name: two, share: {worker: 8, ps: 4}}]
"""
TASKS: Final = """\
machines: 40
deadline: 60s
miss_probability: 0.1
tasks:
  - {count: 3, duration: {kind: pareto, shape: 2.0, mean: 12s}}
  - {count: 2, duration: {kind: weibull, shape: 0.7, mean: 9s, minimum: 1s}}
  - {count: 1, duration: {kind: log-normal, sigma: 0.8, mean: 8s}}
"""
COPIES: Final = {
    "cloning": ("solve",),
    "waves": ("waves", "--jobs", "8"),
}
"""Groups of kernels that commands about copies call, not policies."""

BAGS_OF_TASKS: Final = """\
slot: 1min
horizon: 30
servers:
  - {name: gpu, count: 6, role: worker, capacity: {gpu: 8}}
"""
BAGS_AND_TRAINING: Final = """\
jobs:
  - name: train
    chunks: 8
    minibatches: 20
    minibatch_time: 6s
    worker: {gpu: 1}
    utility: {kind: sigmoid, value: 100, decay: 0.1, target: 9 slots}
  - name: pareto
    arrival: 2 slots
    tasks:
      - {count: 12, duration: {kind: pareto, shape: 2.0, mean: 90s}}
      - {count: 4, duration: {kind: log-normal, sigma: 1.0, mean: 60s}}
    deadline: 8min
    miss_probability: 0.05
    worker: {gpu: 1}
    utility: {kind: linear, value: 60, slope: -3}
  - name: soon
    arrival: 2 slots
    tasks: [{count: 30, duration: {kind: weibull, shape: 0.7, mean: 90s, minimum: 1s}}]
    deadline: 20min
    miss_probability: 0.2
    worker: {gpu: 1}
    utility: {kind: constant, value: 90}
"""
TAKE_BAGS: Final = ("oasis", "pdors", "rolling")
"""Policies that plan bags of tasks: what they need for that is kept apart."""

SETTINGS: Final = {"oasis": (("lower=clearing",), ("prices=online",)), "dorm": (("window=4",),)}
"""Parameters with which a policy runs besides its defaults."""

TOGETHER: Final = frozenset({"rolling"})
"""Policies that do more where jobs are faster on one server."""

Calls = dict[str, list[str]]


def workloads(policy: str, folder: Path) -> Iterable[list[str]]:
    """Yield calls of the command line that run a policy on different kinds of jobs."""
    from shadowprice.policies.registry import policy_info

    if policy_info(policy).counts_places:
        (folder / "places.yaml").write_text(PLACES, encoding="utf-8")
        jobs = [
            {
                "name": f"{tenant}-{at}",
                "tenant": tenant,
                "arrival": f"{at} slots",
                "chunks": 4,
                "minibatches": 60,
                "minibatch_time": "60s",
                "worker": {"worker": 1},
                "ps": {"ps": 1},
                "utility": {"kind": "linear", "value": 50, "slope": -2},
            }
            for at in range(4)
            for tenant in ("one", "two")
        ]
        (folder / "tenants.jsonl").write_text("\n".join(map(json.dumps, jobs)), encoding="utf-8")
        files = ["-c", str(folder / "places.yaml"), "-j", str(folder / "tenants.jsonl")]
        yield [*files, "--until", "40 slots"]
        return
    base = ["-c", str(EXAMPLES / "cluster.yaml"), "-j", str(EXAMPLES / "jobs.yaml")]
    yield [*base, "--until", "20 slots", "--incidents", str(EXAMPLES / "incidents.yaml")]
    files = _drawn(folder, "calibrated")
    for pairs in ((), *SETTINGS.get(policy, ())):
        yield [*files, "--until", "40 slots", *(word for pair in pairs for word in ("-s", pair))]
    if policy in TOGETHER:
        yield [*_drawn(folder, "pdors"), "--until", "40 slots"]


def _drawn(folder: Path, preset: str) -> list[str]:
    """Return the options that name a generated workload."""
    drawn = folder / preset
    if not drawn.exists():
        _command(
            *("generate", "--preset", preset, "--jobs", "20", "--slots", "40"),
            *("--seed", "3", "--out", str(drawn)),
        )
    return ["-c", str(drawn / "cluster.yaml"), "-j", str(drawn / "jobs.jsonl")]


def _bags(folder: Path) -> Iterable[list[str]]:
    """Yield a call that runs a policy on bags of tasks and training beside them."""
    (folder / "bags-cluster.yaml").write_text(BAGS_OF_TASKS, encoding="utf-8")
    (folder / "bags.yaml").write_text(BAGS_AND_TRAINING, encoding="utf-8")
    files = ["-c", str(folder / "bags-cluster.yaml"), "-j", str(folder / "bags.yaml")]
    yield [*files, "--until", "30 slots"]


def run(policy: str, folder: Path) -> None:
    """Run all workloads of a policy, or the command of a group about copies."""
    if policy in COPIES:
        (folder / "tasks.yaml").write_text(TASKS, encoding="utf-8")
        command, *options = COPIES[policy]
        _command("cloning", command, str(folder / "tasks.yaml"), "-o", "json", *options)
        return
    own = _bags(folder) if policy.endswith(BAGS) else workloads(policy, folder)
    policy = policy.removesuffix(BAGS)
    for words in own:
        _command("simulate", "-p", policy, "-q", "-o", "json", *words)


def _command(*words: str) -> None:
    from shadowprice.cli.main import main

    stdout, sys.stdout = sys.stdout, open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    try:
        status = main(words)
    finally:
        sys.stdout.close()
        sys.stdout = stdout
    if status:
        sys.exit(f"{' '.join(words)} ended with {status}")


def called(policies: Iterable[str], folder: Path) -> Calls:
    """Return what the code of policies itself calls, after running them."""
    for policy in policies:
        run(policy, folder)
    from shadowprice.kernels import jit

    return {
        name: sorted(_text(types) for types in compiled.overloads)
        for name, compiled in sorted(jit.kernels.items())
        if compiled.overloads
    }


def _text(types: Iterable[object]) -> str:
    from shadowprice.kernels.warming import described

    return described(types)


def edges(policies: Iterable[str], folder: Path) -> dict[str, list[list[str]]]:
    """Return the overloads that each overload calls, as ``name(types)``."""
    import importlib
    import pkgutil

    from numba.core import event

    import shadowprice.kernels
    from shadowprice.kernels import jit

    for module in pkgutil.walk_packages(shadowprice.kernels.__path__, "shadowprice.kernels."):
        importlib.import_module(module.name)
    names = {id(compiled): name for name, compiled in jit.kernels.items()}
    stack: list[str] = []
    found: dict[str, list[list[str]]] = {}

    class Nesting(event.Listener):
        def on_start(self, event: Any) -> None:
            name = names.get(id(event.data["dispatcher"]))
            stack.append(f"{name}({_text(event.data['args'])})" if name else stack[-1])

        def on_end(self, event: Any) -> None:  # noqa: ARG002 - the protocol's
            stack.pop()

    event.register("numba:compile", Nesting())  # type: ignore[no-untyped-call]

    def observe(name: str, compiled: Any) -> None:
        template = compiled.get_call_template

        def noted(args: Any, kws: Any) -> Any:
            result = template(args, kws)
            if stack:
                found.setdefault(stack[-1], []).append([name, _text(result[2])])
            return result

        compiled.get_call_template = noted

    for name, compiled in jit.kernels.items():
        observe(name, compiled)
    for policy in policies:
        run(policy, folder)
    return found


def main() -> None:
    """Record, or do a part of it in a process of its own."""
    if sys.argv[1:2] and sys.argv[1] in _PARTS:
        what, folder, *policies = sys.argv[1:]
        # What was recorded before is compiled in processes of its own, and nothing is seen of it.
        from shadowprice.kernels import manifest as recorded

        recorded.manifest = dict  # type: ignore[assignment]
        print(json.dumps(_PARTS[what](policies, Path(folder))))
        return
    from shadowprice.kernels import numba_parts
    from shadowprice.policies.registry import policies as registered

    if not numba_parts.are_known():
        sys.exit("recording needs a numba whose private parts are known: it tells inner kernels")
    every = [name for name in registered() if name != "optimum"]  # it has no kernels of its own
    every += [*groups_of(TAKE_BAGS, bags=True)[len(TAKE_BAGS) :], *COPIES]
    names = sys.argv[1:] or every
    manifest: dict[str, dict[str, Calls]] = {}
    if names != every:
        manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:

        def part(*words: str, **environment: str) -> Any:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.record_kernels", *words],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                check=True,
            )
            return json.loads(done.stdout)

        calls = part("edges", folder, *names, NUMBA_CACHE_DIR=f"{folder}/cache")
        for name in names:
            own = part("called", folder, name, NUMBA_CACHE_DIR=f"{folder}/cache")
            manifest[name] = {"called": own, "inner": _inner(own, calls)}
        for name in (name for name in names if name.endswith(BAGS)):
            _leave_out(manifest[name], manifest[name.removesuffix(BAGS)])
    text = json.dumps(
        {name: manifest[name] for name in every if manifest.get(name, {}).get("called")}, indent=1
    )
    MANIFEST.write_text(text + "\n", encoding="utf-8")
    for name in names:
        called, inner = (sum(map(len, part.values())) for part in manifest[name].values())
        print(f"{name}: {called} kernels, and {inner} that these call")


_PARTS: Final = {"edges": edges, "called": called}


def _leave_out(group: dict[str, Calls], known: dict[str, Calls]) -> None:
    """Keep of a group what is not needed without it already."""
    called = {(name, text) for name, texts in known["called"].items() for text in texts}
    inner = called | {(name, text) for name, texts in known["inner"].items() for text in texts}
    for part, there in (("called", called), ("inner", inner)):
        left = {
            name: [text for text in texts if (name, text) not in there]
            for name, texts in group[part].items()
        }
        group[part] = {name: texts for name, texts in left.items() if texts}


def _inner(own: Calls, calls: dict[str, list[list[str]]]) -> Calls:
    """Return what is called by what a policy calls, and by that in turn."""
    called = {(name, text) for name, texts in own.items() for text in texts}
    waiting = list(called)
    seen = set(called)
    while waiting:
        name, text = waiting.pop()
        for callee, types in calls.get(f"{name}({text})", ()):
            if (callee, types) not in seen:
                seen.add((callee, types))
                waiting.append((callee, types))
    inner: Calls = {}
    for name, text in sorted(seen - called):
        inner.setdefault(name, []).append(text)
    return inner


if __name__ == "__main__":
    main()
