"""Random actions of users of `TrainingJob` resources, and the state that must result.

A walk does one thing after the other to a few names: it applies them, new or edited, with a valid
edit or not, labels them, removes their finalizer, and deletes them. Every request is recorded here
when it is sent; nothing that the service reports is trusted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tools.testbed import ApiError, Testbed

NAMESPACE: Final = "default"
RESOURCES: Final = f"/apis/shadowprice.io/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
GPUS: Final = 3
"""Capacity of the nodes together."""

REVISABLE: Final = ("workers", "utility", "minibatches", "labels")
FIXED: Final = ("worker", "run", "chunks", "minibatch_time")

WAITS_OR_RUNS: Final = frozenset({"admitted", "standby", "running"})
"""Final states of a job that wasn't deleted."""

Spec = Mapping[str, Any]


def valid(spec: Spec) -> bool:
    """Whether a job can have this spec."""
    return bool(spec["workers"].get("min", 1) <= spec["workers"]["max"])


def part(spec: Spec, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return some keys of a spec; of the labels, those of users."""
    found = {key: spec.get(key) for key in keys}
    if "labels" in found:
        labels = found["labels"] or {}
        found["labels"] = {
            key: labels[key] for key in labels if not key.startswith("shadowprice.io/")
        }
    return found


@dataclass
class DesiredResource:
    """A resource from its creation on; a name may have several, one after the other.

    Parameters
    ----------
    name, uid : str
        Its identity.
    specs : list of mapping
        The requested specs, in order.
    deleted : bool
        Whether its deletion was requested.
    """

    name: str
    uid: str
    specs: list[Spec] = field(default_factory=list)
    deleted: bool = False


@dataclass
class RandomWalk:
    """Does random things to some resources.

    Parameters
    ----------
    bed : Testbed
        The cluster.
    seed : int
        Seed of the random choices.
    names : tuple of str
        The resources' names.
    """

    bed: Testbed
    seed: int
    names: tuple[str, ...]
    wishes: dict[str, DesiredResource] = field(default_factory=dict)
    """By uid."""
    done: list[str] = field(default_factory=list)
    """The actions and their times, for the report of a failure."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._began = time.monotonic()

    def spec(self) -> Spec:
        """Draw a spec."""
        chance = self.chance
        most = chance.choice([1, 2, 3])
        workers = {"min": most + 1, "max": most} if chance.random() < 0.15 else {"max": most}
        other = chance.random() < 0.15
        return {
            "chunks": 3,
            "minibatches": chance.choice([3600, 7200]),
            "minibatch_time": "1s",
            "worker": {"cpu": "0.2" if other else "0.1", "gpu": 1},
            "workers": workers,
            "utility": {"kind": "constant", "value": chance.randint(1, 9)},
            "labels": {"team": chance.choice(["vision", "speech"])},
            "run": {
                "command": ["sleep", "36000"],
                "grace": "1s",
                "checkpoints": True,  # otherwise it would keep its placement
                "pod": {"pull": "Never"},
            },
        }

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        """Do one thing to one of them."""
        name = self.chance.choice(self.names)
        does: list[tuple[Callable[[str], str], float]] = [
            (self.apply, 8.0),
            (self.delete, 4.0),
            (self.label, 1.0),
            (self.forsake, 2.0),
        ]
        act = self.chance.choices([one for one, _ in does], [weight for _, weight in does])[0]
        at = time.monotonic() - self._began
        self.done.append(f"{at:7.2f} {act.__name__} {name}: {act(name)}")

    def description(self) -> str:
        """Return all actions, for the report of a failure."""
        return "\n".join([f"seed {self.seed}", *self.done])

    def note(self, what: str) -> None:
        """Record an action of another user."""
        self.done.append(f"{time.monotonic() - self._began:7.2f} {what}")

    def apply(self, name: str) -> str:
        """Apply a new job, or change one that isn't being deleted."""
        spec = self.spec()
        body = {
            "apiVersion": "shadowprice.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        where = f"{RESOURCES}/{name}?fieldManager=walk&force=true"
        made = self.bed.ask("PATCH", where, body, kind="application/apply-patch+yaml")
        meta = made["metadata"]
        wish = self.wishes.setdefault(meta["uid"], DesiredResource(name, meta["uid"]))
        wish.specs.append(spec)
        wish.deleted = "deletionTimestamp" in meta
        own = {key: spec[key] for key in ("workers", "minibatches", "utility", "worker", "labels")}
        return f"{meta['uid'][:8]} {'going ' if wish.deleted else ''}{own}"

    def delete(self, name: str) -> str:
        """Delete one."""
        try:
            self.bed.ask("DELETE", f"{RESOURCES}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return "is not there"
        for wish in self.wishes.values():
            wish.deleted |= wish.name == name
        return "goes"

    def label(self, name: str) -> str:
        """Change a part that has nothing to do with the job."""
        return self._patched(name, {"labels": {"seen": str(self.chance.randint(0, 9))}})

    def forsake(self, name: str) -> str:
        """Remove the finalizer, so that a deleted one is gone at once."""
        return self._patched(name, {"finalizers": None})

    def _patched(self, name: str, meta: Mapping[str, Any]) -> str:
        kind = "application/merge-patch+json"
        try:
            self.bed.ask("PATCH", f"{RESOURCES}/{name}", {"metadata": meta}, kind=kind)
        except ApiError as error:
            if error.status != 404:
                raise
            return "is not there"
        return str(meta)

    # ------------------------------------------------------------------ what has to be

    def lasting(self) -> dict[str, DesiredResource]:
        """Return the resources that weren't deleted, by name."""
        return {wish.name: wish for wish in self.wishes.values() if not wish.deleted}

    def faults(self, jobs: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return every difference from the requested state, a line each.

        Parameters
        ----------
        jobs : mapping of str to mapping
            Every job that the service ever had, by its name, as its API returns it.
        """
        found: list[str] = []
        items = {item["metadata"]["name"]: item for item in self.bed.ask("GET", RESOURCES)["items"]}
        items = {name: item for name, item in items.items() if name in self.names}
        wanted = self.lasting()
        found += [f"{name} is there, and was deleted" for name in items.keys() - wanted.keys()]
        found += [f"{name} is not there" for name in wanted.keys() - items.keys()]
        owned: dict[str, list[Mapping[str, Any]]] = {}
        for job in jobs.values():
            owned.setdefault(job["spec"]["labels"]["shadowprice.io/uid"], []).append(job)
        found += [f"{uid} has several jobs" for uid, own in owned.items() if len(own) > 1]
        found += [f"nobody asked for {uid}" for uid in owned.keys() - self.wishes.keys()]
        for uid, wish in self.wishes.items():
            job = next(iter(owned.get(uid, [])), None)
            if wish.deleted:
                if job is not None and job["state"] != "cancelled":
                    found.append(f"{wish.name} ({uid}) was deleted, and is {job['state']}")
            elif wish.name in items:
                label = f"{wish.name} ({uid})"
                found += [f"{label} {what}" for what in _judged(wish, items[wish.name], job)]
        return [*found, *self._pods(items, jobs)]

    def _pods(self, items: Mapping[str, Any], jobs: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return jobs that run and should not, and those that don't and should."""
        where = f"/api/v1/namespaces/{NAMESPACE}/pods"
        own = "labelSelector=shadowprice.io/service%3Dshadowprice"
        pods = self.bed.ask("GET", f"{where}?{own}")["items"]
        found, have = [], dict.fromkeys(items, 0)
        for pod in pods:
            [owner] = [
                reference["name"]
                for reference in pod["metadata"]["ownerReferences"]
                if reference["kind"] == "TrainingJob"
            ]
            response = items.get(owner, {}).get("status", {})
            number = pod["metadata"]["labels"]["shadowprice.io/generation"]
            if response.get("state") != "running" or str(response.get("generation")) != number:
                found.append(f"{pod['metadata']['name']} of {owner} is left")
            else:
                have[owner] += 1
        open_ = {
            job["spec"]["labels"]["shadowprice.io/name"]: job
            for job in jobs.values()
            if job["state"] in WAITS_OR_RUNS
        }
        most = sum(job["spec"]["workers"]["max"] for job in open_.values())
        if sum(have.values()) != min(GPUS, most):
            found.append(f"{have} run, of {most} that are asked for")
        for name, item in items.items():
            if have[name] != int(item.get("status", {}).get("workers") or 0):
                found.append(f"{name} has {have[name]} pods, and is told otherwise")
        return found


def _judged(
    wish: DesiredResource, item: Mapping[str, Any], job: Mapping[str, Any] | None
) -> list[str]:
    """Return what is wrong with a resource that wasn't deleted, and with its job."""
    found, status = [], item.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    edited = conditions.get("Edited", {})
    last, could = wish.specs[-1], [spec for spec in wish.specs if valid(spec)]
    if status.get("observedGeneration") != item["metadata"]["generation"]:
        found.append(f"was last seen as {status.get('observedGeneration')}")
    if item["metadata"].get("finalizers") != ["shadowprice.io/cancel"]:
        found.append("has no finalizer")
    if job is None:
        # A valid one may have been edited before the controller saw it.
        if valid(last):
            found.append("has no job")
        elif conditions.get("Rejected", {}).get("reason") != "InvalidSpec":
            found.append("is invalid, and not told so")
        return found
    has = job["spec"]
    if job["state"] not in WAITS_OR_RUNS or job["state"] != status.get("state"):
        found.append(f"is {job['state']}, and told {status.get('state')}")
    if part(has, FIXED) not in [part(one, FIXED) for one in could]:
        found.append(f"is none of what was asked for: {part(has, FIXED)}")
    same = part(has, FIXED) == part(last, FIXED)
    allowed = [part(one, REVISABLE) for one in ([last] if valid(last) else could)]
    if part(has, REVISABLE) not in allowed:
        found.append(f"is {part(has, REVISABLE)}, and was asked to be {allowed[-1]}")
    why = "Immutable" if not same else "NotApplied" if not valid(last) else ""
    if why and (edited.get("status"), edited.get("reason")) != ("False", why):
        found.append(f"{why} is not told: {edited}")
    if not why and edited.get("status") == "False":
        found.append(f"is as asked for, and told otherwise: {edited}")
    return found
