"""Execution of an experiment's runs, locally one by one or on a Ray cluster.

Both ways make the same calls with the same arguments, and combine their results in the same order,
so the output is equal. Finished runs are stored beside the output until all are done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heapreplace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from shadowprice import __version__
from shadowprice.core.errors import Fault, InputError, MissingExtraError, ShadowpriceError
from shadowprice.core.wording import quote_for_display

Work = Callable[..., Any]
OnStart = Callable[[int], None]
OnResult = Callable[[int, Any, float], None]
"""Called with the index of a run, its result and its processor time in seconds."""

RETRIES: Final = 5  # maximum number of lost nodes for a run before it fails

QUEUED_RUNS_PER_CORE: Final = 2  # runs submitted to a Ray cluster per core: one runs, and one waits

NODE_PROBE_TIMEOUT_SECONDS: Final = 120.0
"""Timeout of a node's response about its installed version, in seconds."""


class RunBackend(Protocol):
    """Executes runs."""

    def run(
        self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart, took: OnResult
    ) -> None:
        """Execute one run per case.

        ``work`` is a module's function, called with the arguments of each case, which have to be
        picklable. ``began`` is called with the index of a case whose run starts here. ``took`` is
        called with each result, in any order.
        """


class SequentialBackend:
    """Executes runs in this process, one after the other."""

    def run(
        self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart, took: OnResult
    ) -> None:
        """Execute one run per case; see `RunBackend.run`."""
        for index, case in enumerate(cases):
            began(index)
            took(index, *run_timed(work, case))


def run_timed(work: Work, case: tuple[Any, ...]) -> tuple[Any, float]:
    """Return a result, and its processor time in seconds."""
    before = time.process_time()
    result = work(*case)
    return result, time.process_time() - before


# ------------------------------------------------------------------ stored results


class CachingBackend:
    """Stores every result on disk, and skips runs with a stored result.

    The key of a result consists of the function, its arguments and all sources of this package, so
    a result of another version is never used.

    ``folder`` is created if necessary, readable by its owner only. ``key`` returns the key of a
    run's arguments, by default their whole content. Raises `InputError` if other users may write to
    the folder, because results are pickled, so reading them runs code.
    """

    def __init__(
        self,
        within: RunBackend,
        folder: Path,
        key: Callable[[tuple[Any, ...]], bytes] = partial(pickle.dumps, protocol=5),  # noqa: B008  # constant
    ) -> None:
        self._within = within
        self._key = key
        self._folder = folder
        self.found = 0
        """Number of runs that were skipped."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
        if info.st_uid != os.geteuid() or info.st_mode & 0o022 or folder.is_symlink():
            hint = "remove it, or give another --out"
            raise InputError(Fault(str(folder), "others may write there", hint))

    def run(
        self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart, took: OnResult
    ) -> None:
        """Execute the missing runs; see `RunBackend.run`."""
        prefix = f"{sources()}\0{work.__module__}.{work.__qualname__}\0".encode()
        names = (hashlib.sha256(prefix + self._key(case)).hexdigest() for case in cases)
        paths = [self._folder / f"{name}.pickle" for name in names]
        missing: list[int] = []
        for index, path in enumerate(paths):
            kept = _read(path)
            if kept is None:
                missing.append(index)
            else:
                self.found += 1
                took(index, *kept)

        def keep(number: int, result: Any, seconds: float) -> None:
            index = missing[number]
            fresh = paths[index].with_suffix(".new")
            fresh.write_bytes(pickle.dumps((result, seconds)))
            fresh.rename(paths[index])
            took(index, result, seconds)

        self._within.run(
            work, [cases[index] for index in missing], lambda number: began(missing[number]), keep
        )

    def remove(self) -> None:
        """Remove all stored results."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(path: Path) -> tuple[Any, float] | None:
    try:
        result, seconds = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except Exception:  # incomplete, because its writer was interrupted: run it again
        return None
    return result, seconds


@cache
def sources() -> str:
    """Return a digest of this package's version and sources."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------ Ray


class RayBackend:
    """Executes runs on a Ray cluster, one per core, and retries a run after its node is lost.

    ``address`` is ``ray`` for this machine's cluster, or without one a cluster of its own cores.
    ``HOST:PORT`` or ``ray://HOST:PORT`` is the cluster of a head node. Raises `InputError` if the
    address is invalid, and `MissingExtraError` if ray isn't installed.
    """

    def __init__(self, address: str) -> None:
        if address != "ray" and not address.rpartition(":")[2].isdecimal():
            hint = "write ray, HOST:PORT or ray://HOST:PORT"
            raise InputError(Fault("--on", f"{quote_for_display(address)} is not valid", hint))
        if importlib.util.find_spec("ray") is None:
            raise _MissingRayError("ray", "ray", "spreading runs")
        self._address = address

    def __enter__(self) -> RayBackend:
        """Connect, and check that every node has this version installed.

        Raises `InputError` if Ray doesn't respond, or a node has another version.
        """
        import ray  # noqa: PLC0415  # the extra, only where it is asked for

        from shadowprice.executors.ray.bridge_client import (  # noqa: PLC0415
            MAX_CONNECT_ATTEMPTS,
            is_transient,
            last_head_address,
            probe,
        )

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        reason = probe(self._address)
        if reason:
            raise InputError(Fault("--on", f"no Ray answers at {self._address}", reason))
        chosen = {} if self._address == "ray" else {"address": self._address}
        if not chosen and "RAY_ADDRESS" not in os.environ and probe(last_head_address()):
            # The remembered cluster is gone; Ray would retry for minutes and fail.
            chosen = {"address": "local"}
        for remaining in reversed(range(MAX_CONNECT_ATTEMPTS)):
            try:
                ray.init(log_to_driver=False, logging_level="ERROR", **chosen)
            except Exception as error:  # Ray raises many types
                ray.shutdown()  # it may still be connected
                if not remaining or not is_transient(error):
                    text = _lines(error)
                    hint = "install what its nodes have" if "ersion mismatch" in text else ""
                    raise InputError(Fault("--on", f"{self._address}: {text}", hint)) from error
            else:
                break
        try:
            self._check()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect, which ends all running tasks."""
        import ray  # noqa: PLC0415  # as above

        ray.shutdown()

    @property
    def cores(self) -> int:
        """Cores of the cluster, as Ray counts them."""
        import ray  # noqa: PLC0415  # as above

        return int(ray.cluster_resources().get("CPU", 0))

    def _check(self) -> None:
        import ray  # noqa: PLC0415  # as above
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        ask = ray.remote(num_cpus=0, max_retries=0)(_sources_there)
        responses = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                responses[node["NodeName"]] = ask.options(scheduling_strategy=strategy).remote()
        if not responses:
            raise InputError(Fault("--on", "no node of the cluster has a core"))
        for name, response in responses.items():
            hint = f"install shadowprice {__version__} there, the same sources as here"
            try:
                digest = ray.get(response, timeout=NODE_PROBE_TIMEOUT_SECONDS)
            except Exception as error:  # a node that leaves, or has no such package
                raise InputError(Fault(f"--on: node {name}", _line(error), hint)) from error
            if digest != sources():
                raise InputError(Fault(f"--on: node {name}", "has another version", hint))

    def run(
        self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart, took: OnResult
    ) -> None:
        """Make one run a case, as many at a time as there are cores; see `RunBackend.run`."""
        import ray  # noqa: PLC0415  # as above
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

        del began  # only Ray knows when a run starts
        make = ray.remote(num_cpus=1, max_retries=RETRIES)(run_timed)
        waiting = deque(enumerate(cases))
        pending: dict[Any, int] = {}
        # After an error, submitted runs end with the connection. Cancelling them is unsafe: a
        # result that arrives at that moment aborts the whole driver (Ray 2.60).
        while waiting or pending:
            while waiting and len(pending) < QUEUED_RUNS_PER_CORE * max(self.cores, 1):
                index, case = waiting.popleft()
                pending[make.remote(work, case)] = index
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=1.0)
            for reference in ready:
                try:
                    result, seconds = ray.get(reference)
                except RayTaskError as error:  # the run itself failed
                    raise error.cause if error.cause is not None else error from None
                except RayError as error:
                    index = pending[reference]
                    raise ShadowpriceError(
                        f"run {index + 1} of {len(cases)} was lost {RETRIES + 1} times: "
                        f"{_line(error)}"
                    ) from error
                took(pending.pop(reference), result, seconds)


def _sources_there() -> str:
    return sources()  # Ray takes plain functions only


class _MissingRayError(MissingExtraError):
    """The command line is wrong, not the run."""

    exit_code = 2


def _lines(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line)[:300] or type(error).__name__


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


# ------------------------------------------------------------------ processor times


@dataclass
class CpuTimes:
    """Processor time of an experiment in seconds."""

    runs: list[float] = field(default_factory=list)  # time of each run
    rest: float = 0.0  # time of the serial rest: combining tables, drawing

    def on(self, cores: int) -> float:
        """Return the estimated time on a number of free cores as fast as the measured ones.

        Runs are assigned longest first, each to the core that is free first. The serial rest
        follows.
        """
        free = [0.0] * cores
        for seconds in sorted(self.runs, reverse=True):
            heapreplace(free, free[0] + seconds)
        return max(free) + self.rest
