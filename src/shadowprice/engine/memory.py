"""A policy's own memory as a value: learners, queues, cursors, generators.

The memory is all that the policy's attributes hold. What it shares with the engine is kept by
reference: open jobs by name, the cluster, the view. So a memory is taken in time that grows with
what the policy knows, fits a clone of the engine as well as the engine itself, and can be carried
to another process. Only what policies are made of is read back: plain values, arrays, and classes
of this package. What attributes there are, and what they mean, is a matter of the sources: a memory
that is kept for another process is labelled with theirs (`sources`).
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
from shadowprice.core.policy import Policy, unwrapped
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
"""What memories hold besides numpy's and this package's classes."""


_MADE_OF: Final = ("cloning", "core", "engine", "kernels", "laws", "policies")
"""The packages whose classes memories hold."""


@functools.cache
def sources() -> str:
    """Return what tells the sources that memories follow from from every other version of them."""
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


def remember(policy: Policy, view: EngineView) -> bytes:
    """Return a policy's memory.

    Parameters
    ----------
    policy : Policy
        The policy.
    view : EngineView
        The engine's state, by reference to which jobs are kept.

    Raises
    ------
    PolicyError
        If the policy holds what is no memory: a file, a lock, a generator at work.
    """
    stream = io.BytesIO()
    try:
        _Writer(stream, view).dump(vars(unwrapped(policy)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        name = type(unwrapped(policy)).__name__
        raise PolicyError(f"the memory of policy {name} cannot be kept: {error}") from error
    return stream.getvalue()


@dataclass(frozen=True, slots=True)
class Kept:
    """A memory with what it refers to, to be read when the state is another.

    Parameters
    ----------
    memory : bytes
        As `remember` gave it.
    cluster : Cluster
        The cluster of that moment.
    jobs : mapping of str to Job
        The jobs that were open.
    """

    memory: bytes
    cluster: Cluster
    jobs: Mapping[str, Job]

    @classmethod
    def of(cls, memory: bytes, view: EngineView) -> Kept:
        """Return a memory with what the state of the moment holds."""
        return cls(
            memory, view.cluster, {name: state.job for name, state in view.open_jobs.items()}
        )

    def recall(self, policy: Policy, view: EngineView) -> None:
        """Let a policy be as it was then; it has to begin anew on what ``view`` tells now.

        Raises
        ------
        ShadowpriceError
            If the memory is damaged.
        """
        _read(policy, self.memory, view, self.cluster, self.jobs)


def recall(policy: Policy, memory: bytes, view: EngineView) -> None:
    """Give a policy a memory, in place of all that it knows.

    Parameters
    ----------
    policy : Policy
        Built for the same cluster and with the same parameters as the one that remembered.
    memory : bytes
        As `remember` gave it, perhaps in another process.
    view : EngineView
        The state that the policy is to decide on; it holds the jobs that the memory speaks of.

    Raises
    ------
    ShadowpriceError
        If the memory is damaged, of another version, or speaks of jobs that are not open.
    """
    jobs = {name: state.job for name, state in view.open_jobs.items()}
    _read(policy, memory, view, view.cluster, jobs)


def _read(
    policy: Policy, memory: bytes, view: EngineView, cluster: Cluster, jobs: Mapping[str, Job]
) -> None:
    target = unwrapped(policy)
    reader = _Reader(io.BytesIO(memory), view, cluster, jobs, type(target).__module__)
    try:
        attributes = reader.load()
    except (
        pickle.UnpicklingError, EOFError, KeyError, AttributeError, ImportError, TypeError,
    ) as error:  # fmt: skip  # what it is made of may be put together otherwise now
        raise ShadowpriceError(f"a policy's memory cannot be read: {error}") from error
    vars(target).clear()
    vars(target).update(attributes)


def twin(policy: Policy, memory: bytes, view: EngineView) -> Policy:
    """Return another policy of the same kind with this memory."""
    target = unwrapped(policy)
    made: Policy = object.__new__(type(target))
    recall(made, memory, view)
    return made


# What is kept by reference. Functions of this module, so that their names can be written down.


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
        """Write shared things by reference."""
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
        """Read classes that memories are made of, and nothing else."""
        if module == __name__:
            return {"_job": self._open_job, "_shared": self._reference}[name]
        package = module.partition(".")[0]
        if package in {"shadowprice", "numpy", self._package} or (module, name) in _PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a memory")

    def _open_job(self, name: str) -> Job:
        return self._jobs[name]

    def _reference(self, what: str) -> object:
        return {
            "cluster": self._cluster,
            "view": self._view,
            "ledger": self._view.ledger,
        }[what]
