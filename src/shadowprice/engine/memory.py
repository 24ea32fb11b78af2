"""The policy state: pickling and restoring the attributes of a policy.

Objects that the policy shares with the engine are stored by reference: open jobs by name, the
cluster and the view. So the cost grows only with the policy's own data. The policy state also fits
a clone of the engine, and can be moved to another process. Unpickling is restricted to plain
values, arrays, and classes of this package or the policy's package.

The meaning of the attributes depends on the source code. Stored policy state is therefore labelled
with a digest of it (`sources`).
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import Policy, unwrap_policy
from shadowprice.engine.view import EngineView

_PLAIN: Final = frozenset(
    {("builtins", name) for name in ("bytearray", "complex", "frozenset", "range", "set", "slice")}
    | {("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")}
    | {
        ("array", "array"),
        ("array", "_array_reconstructor"),
        ("builtins", "getattr"),
        ("copyreg", "_reconstructor"),
        ("fractions", "Fraction"),
        ("functools", "partial"),
        ("itertools", "count"),
    }
)
"""Classes and functions that policy state may contain besides numpy's and this package's."""


_MADE_OF: Final = ("cloning", "core", "engine", "kernels", "distributions", "policies")
"""Packages whose classes occur in policy state."""


@functools.cache
def sources() -> str:
    """Return a digest of the source code that the meaning of policy state depends on."""
    digest = hashlib.sha256()
    package = resources.files("shadowprice")
    for name in _MADE_OF:
        for path, entry in _modules(package / name, name):
            digest.update(f"{path}\0".encode())
            digest.update(hashlib.sha256(entry.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _modules(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _modules(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry


def dump_policy_state(policy: Policy, view: EngineView) -> bytes:
    """Return a policy's pickled state; raise PolicyError if it holds, for example, a file."""
    stream = io.BytesIO()
    try:
        _Writer(stream, view).dump(vars(unwrap_policy(policy)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        name = type(unwrap_policy(policy)).__name__
        raise PolicyError(f"failed to pickle the state of policy {name}: {error}") from error
    return stream.getvalue()


@dataclass(frozen=True, slots=True)
class SavedPolicyState:
    """Policy state that can be restored after the engine's cluster and open jobs have changed."""

    memory: bytes
    cluster: Cluster
    jobs: Mapping[str, Job]

    @classmethod
    def of(cls, memory: bytes, view: EngineView) -> SavedPolicyState:
        """Return policy state with the cluster and the open jobs of the view."""
        return cls(memory, view.cluster, _open_jobs(view))

    def load(self, policy: Policy, view: EngineView) -> None:
        """Restore the policy state; the policy must then resync with ``view``."""
        _read(policy, self.memory, view, self.cluster, self.jobs)


def load_policy_state(policy: Policy, memory: bytes, view: EngineView) -> None:
    """Replace a policy's state by the result of `dump_policy_state`, possibly from another process.

    The policy must have been built for the same cluster and with the same parameters. ``view`` must
    have all jobs that the policy state refers to. Raises ShadowpriceError if the policy state is
    damaged, of another version, or names jobs that aren't open.
    """
    _read(policy, memory, view, view.cluster, _open_jobs(view))


def _open_jobs(view: EngineView) -> Mapping[str, Job]:
    return {name: state.job for name, state in view.open_jobs.items()}


def _read(
    policy: Policy, memory: bytes, view: EngineView, cluster: Cluster, jobs: Mapping[str, Job]
) -> None:
    target = unwrap_policy(policy)
    reader = _Reader(io.BytesIO(memory), view, cluster, jobs, type(target).__module__)
    try:
        attributes = reader.load()
    except (
        pickle.UnpicklingError, EOFError, KeyError, AttributeError, ImportError, TypeError,
    ) as error:  # fmt: skip  # classes may have changed since the state was pickled
        raise ShadowpriceError(f"failed to read the policy's state: {error}") from error
    vars(target).clear()
    vars(target).update(attributes)


def copy_policy(policy: Policy, memory: bytes, view: EngineView) -> Policy:
    """Return a new policy of the same class with this policy state."""
    copy: Policy = object.__new__(type(unwrap_policy(policy)))
    load_policy_state(copy, memory, view)
    return copy


# Placeholders for shared objects. Pickle stores their names, and `_Reader` replaces them.


def _job(name: str) -> Any:
    raise NotImplementedError(name)


def _shared(what: str) -> Any:
    raise NotImplementedError(what)


class _Writer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, view: EngineView) -> None:
        super().__init__(stream, protocol=5)
        self._view = view
        self._cluster = view.cluster

    def reducer_override(self, value: object) -> Any:
        """Pickle shared objects by reference."""
        kind = type(value)
        if kind is Job:
            state = self._view.open_jobs.get(value.name)  # type: ignore[attr-defined]
            if state is not None and state.job is value:
                return _job, (state.job.name,)
        elif kind is Cluster:
            if value is self._cluster:
                return _shared, ("cluster",)
        elif kind is EngineView:
            return _shared, ("view",)
        elif kind is LedgerView:
            return _shared, ("ledger",)
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(
        self,
        stream: io.BytesIO,
        view: EngineView,
        cluster: Cluster,
        jobs: Mapping[str, Job],
        module: str,
    ) -> None:
        super().__init__(stream)
        self._view, self._cluster, self._jobs = view, cluster, jobs
        self._package = module.partition(".")[0]

    def find_class(self, module: str, name: str) -> Any:
        """Resolve only the classes that policy state may contain."""
        if module == __name__:
            shared = {
                "cluster": self._cluster,
                "view": self._view,
                "ledger": self._view.ledger,
            }
            return {"_job": self._jobs.__getitem__, "_shared": shared.__getitem__}[name]
        package = module.partition(".")[0]
        if package in {"shadowprice", "numpy", self._package} or (module, name) in _PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in policy state")
