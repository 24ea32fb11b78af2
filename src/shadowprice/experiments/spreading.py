"""Where the runs of an experiment are made: here in turn, or spread over a Ray cluster.

Either way they are the same calls with the same arguments, and their results are put together in
the same order: what comes out is the same. What is done is kept beside the output until all is.
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
from shadowprice.core.wording import shown

Work = Callable[..., Any]
Began = Callable[[int], None]
Took = Callable[[int, Any, float], None]
"""Called with the number of a run, its result and the seconds of processor time that it took."""

RETRIES: Final = 5
"""Nodes that may be lost under a run before it is given up."""

AHEAD: Final = 2
"""Runs that a Ray cluster is given for each of its cores: one runs, one waits behind it."""

PROBE: Final = 120.0
"""Seconds that a node has to say what it has installed."""


class Spread(Protocol):
    """Makes runs."""

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: Began, took: Took) -> None:
        """Make one run a case.

        Parameters
        ----------
        work : callable
            A function of a module, called with the parts of each case.
        cases : sequence of tuple
            Arguments, which can be pickled.
        began : callable
            Called with the number of a case where its run begins here.
        took : callable
            Called with each result, in any order.
        """


class InTurn:
    """Makes runs here, one after the other."""

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: Began, took: Took) -> None:
        """Make one run a case; see `Spread.run`."""
        for at, case in enumerate(cases):
            began(at)
            took(at, *timed(work, case))


def timed(work: Work, case: tuple[Any, ...]) -> tuple[Any, float]:
    """Return a result, and the seconds of processor time that it took."""
    before = time.process_time()
    result = work(*case)
    return result, time.process_time() - before


# ------------------------------------------------------------------ what is done is kept


class Kept:
    """Keeps every result on disk as it comes, and makes no run whose result is there.

    A result is kept under the function, its arguments and all sources of this package: it is never
    taken for that of another version.

    Parameters
    ----------
    within : Spread
        What makes the runs.
    folder : Path
        Where; made where it is not, and readable by its owner only.
    key : callable, optional
        What tells the arguments of a run from others, as bytes; by default all of their content.

    Raises
    ------
    InputError
        If the directory is not this user's own: results are pickled, and reading them runs what
        they say.
    """

    def __init__(
        self,
        within: Spread,
        folder: Path,
        key: Callable[[tuple[Any, ...]], bytes] = partial(pickle.dumps, protocol=5),  # noqa: B008  # constant
    ) -> None:
        self._within = within
        self._key = key
        self._folder = folder
        self.found = 0
        """Runs that were not made, for their results were there."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
        if info.st_uid != os.geteuid() or info.st_mode & 0o022 or folder.is_symlink():
            mend = "remove it, or give another --out"
            raise InputError(Fault(str(folder), "others may write there", mend))

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: Began, took: Took) -> None:
        """Make the runs that are missing; see `Spread.run`."""
        said = f"{sources()}\0{work.__module__}.{work.__qualname__}\0".encode()
        names = (hashlib.sha256(said + self._key(case)).hexdigest() for case in cases)
        paths = [self._folder / f"{name}.pickle" for name in names]
        missing: list[int] = []
        for at, path in enumerate(paths):
            kept = _read(path)
            if kept is None:
                missing.append(at)
            else:
                self.found += 1
                took(at, *kept)

        def keep(number: int, result: Any, seconds: float) -> None:
            at = missing[number]
            fresh = paths[at].with_suffix(".new")
            fresh.write_bytes(pickle.dumps((result, seconds)))
            fresh.rename(paths[at])
            took(at, result, seconds)

        self._within.run(
            work, [cases[at] for at in missing], lambda number: began(missing[number]), keep
        )

    def remove(self) -> None:
        """Remove what was kept: all is done."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(path: Path) -> tuple[Any, float] | None:
    try:
        result, seconds = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except Exception:  # cut off while it was written: made again
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


# ------------------------------------------------------------------ on Ray


class OnRay:
    """Makes runs on a Ray cluster, one a core; a run whose node is lost is made again elsewhere.

    Parameters
    ----------
    address : str
        ``ray`` for the cluster that this machine is in, or else one of its own cores;
        ``HOST:PORT`` or ``ray://HOST:PORT`` for that of a head.

    Raises
    ------
    InputError
        If it is no such address.
    MissingExtraError
        If ray is not installed.
    """

    def __init__(self, address: str) -> None:
        if address != "ray" and not address.rpartition(":")[2].isdecimal():
            mend = "write ray, HOST:PORT or ray://HOST:PORT"
            raise InputError(Fault("--on", f"{shown(address)} is no such", mend))
        if importlib.util.find_spec("ray") is None:
            raise _MissingRayError("ray", "ray", "spreading runs")
        self._address = address

    def __enter__(self) -> OnRay:
        """Connect, and see that every node has what is installed here.

        Raises
        ------
        InputError
            If nobody answers, or a node has another version.
        """
        import ray  # noqa: PLC0415  # the extra, only where it is asked for

        from shadowprice.executors.ray.reach import (  # noqa: PLC0415
            TRIES,
            by_chance,
            reached,
            remembered,
        )

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        why = reached(self._address)
        if why:
            raise InputError(Fault("--on", f"no Ray answers at {self._address}", why))
        chosen = {} if self._address == "ray" else {"address": self._address}
        if not chosen and "RAY_ADDRESS" not in os.environ and reached(remembered()):
            # That cluster is gone; Ray would try for minutes, and fail.
            chosen = {"address": "local"}
        for left in reversed(range(TRIES)):
            try:
                ray.init(log_to_driver=False, logging_level="ERROR", **chosen)
            except Exception as error:  # whatever Ray raises, for people
                ray.shutdown()  # it may be connected nevertheless
                if not left or not by_chance(error):
                    text = _lines(error)
                    mend = "install what its nodes have" if "ersion mismatch" in text else ""
                    raise InputError(Fault("--on", f"{self._address}: {text}", mend)) from error
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
        """Disconnect; what still runs is ended."""
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
        asked = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                asked[node["NodeName"]] = ask.options(scheduling_strategy=place).remote()
        if not asked:
            raise InputError(Fault("--on", "no node of the cluster has a core"))
        for name, answer in asked.items():
            mend = f"install shadowprice {__version__} there, the same sources as here"
            try:
                found = ray.get(answer, timeout=PROBE)
            except Exception as error:  # a node that leaves, or has no such package
                raise InputError(Fault(f"--on: node {name}", _line(error), mend)) from error
            if found != sources():
                raise InputError(Fault(f"--on: node {name}", "has another version", mend))

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: Began, took: Took) -> None:
        """Make one run a case, as many at a time as there are cores; see `Spread.run`."""
        import ray  # noqa: PLC0415  # as above
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

        del began  # Ray knows when
        make = ray.remote(num_cpus=1, max_retries=RETRIES)(timed)
        waiting = deque(enumerate(cases))
        asked: dict[Any, int] = {}
        # Where this is left early, what was given out ends with the connection. It is not
        # cancelled: a result that comes in at that moment aborts the whole driver (Ray 2.60).
        while waiting or asked:
            while waiting and len(asked) < AHEAD * max(self.cores, 1):
                at, case = waiting.popleft()
                asked[make.remote(work, case)] = at
            ready, _ = ray.wait(list(asked), num_returns=1, timeout=1.0)
            for reference in ready:
                try:
                    result, seconds = ray.get(reference)
                except RayTaskError as error:  # the run itself failed, as it would have here
                    raise error.cause if error.cause is not None else error from None
                except RayError as error:
                    at = asked[reference]
                    raise ShadowpriceError(
                        f"run {at + 1} of {len(cases)} was lost {RETRIES + 1} times: {_line(error)}"
                    ) from error
                took(asked.pop(reference), result, seconds)


def _sources_there() -> str:
    return sources()  # Ray takes plain functions only


class _MissingRayError(MissingExtraError):
    """The call is wrong, not the run."""

    exit_code = 2


def _lines(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line)[:300] or type(error).__name__


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


# ------------------------------------------------------------------ how long it takes


@dataclass
class Times:
    """Seconds of processor time that an experiment takes.

    Parameters
    ----------
    runs : list of float
        Of each run.
    rest : float
        Of all that is done in one place: putting tables together, drawing, what is not divided.
    """

    runs: list[float] = field(default_factory=list)
    rest: float = 0.0

    def on(self, cores: int) -> float:
        """Return how long it takes on so many free cores as fast as those that were measured.

        Runs are given out, the longest first, to whichever core is free first; the rest follows.
        """
        free = [0.0] * cores
        for seconds in sorted(self.runs, reverse=True):
            heapreplace(free, free[0] + seconds)
        return max(free) + self.rest
