"""Execution of runs, locally one by one or on a Ray cluster, for experiments and comparisons.

Both execute the same calls, and combine their results in the same order, so the output is equal.
Finished runs are stored beside the output until all runs are done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heapreplace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from shadowprice import __version__
from shadowprice.core.errors import Fault, InputError, MissingExtraError, ShadowpriceError
from shadowprice.core.wording import quote_for_display
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.run_directory import RunData, folder_name, read_run, write_run
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.simulator.trials import SeedRun

Work = Callable[..., Any]
OnStart = Callable[[int], None]
Runs = Iterator[tuple[int, Any, float]]
"""Index of each run, its result and its processor time in seconds, in any order."""

RETRIES: Final = 5  # maximum number of lost nodes for a run before it fails
QUEUED_RUNS_PER_CORE: Final = 2  # runs submitted to a Ray cluster per core: one runs, and one waits
NODE_PROBE_TIMEOUT_SECONDS: Final = 120.0
"""Maximum time for a node to report its installed version."""


class RunBackend(Protocol):
    """Executes runs."""

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart) -> Runs:
        """Execute one run per case, and yield the results.

        ``work`` is a module's function, called with the arguments of each case, which have to be
        picklable. ``began`` is called with the index of a case whose run starts here.
        """


class SequentialBackend:
    """Executes runs in this process, one after the other."""

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart) -> Runs:
        """Execute one run per case; see `RunBackend.run`."""
        for index, case in enumerate(cases):
            began(index)
            yield index, *run_timed(work, case)


def run_timed(work: Work, case: tuple[Any, ...]) -> tuple[Any, float]:
    """Return a result, and its processor time in seconds."""
    before = time.process_time()
    result = work(*case)
    return result, time.process_time() - before


# ------------------------------------------------------------------ stored results


class CachingBackend:
    """Stores every result on disk, and skips runs with a stored result.

    The key of a result consists of the function, its arguments and a digest of this package's
    sources, so results of other versions aren't used.

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
        self.skipped = 0
        """Number of runs that were skipped."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
        if info.st_uid != os.geteuid() or info.st_mode & 0o022 or folder.is_symlink():
            hint = "remove it, or give another --out"
            raise InputError(Fault(str(folder), "others may write there", hint))

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart) -> Runs:
        """Execute the missing runs; see `RunBackend.run`."""
        prefix = f"{sources()}\0{work.__module__}.{work.__qualname__}\0".encode()
        names = (hashlib.sha256(prefix + self._key(case)).hexdigest() for case in cases)
        paths = [self._folder / f"{name}.pickle" for name in names]
        missing: list[int] = []
        for index, path in enumerate(paths):
            stored = _read(path)
            if stored is None:
                missing.append(index)
            else:
                self.skipped += 1
                yield index, *stored
        rest = [cases[index] for index in missing]
        for number, result, seconds in self._within.run(work, rest, lambda n: began(missing[n])):
            index = missing[number]
            new = paths[index].with_suffix(".new")
            new.write_bytes(pickle.dumps((result, seconds)))
            new.rename(paths[index])
            yield index, result, seconds

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

    The ``address`` ``ray`` is the cluster that runs on this machine, or a new one of its cores.
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
        """Connect; raise `InputError` if Ray doesn't respond, or a node has another version."""
        self._ray = ray = importlib.import_module("ray")  # an extra, so only imported if used

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
        options = {} if self._address == "ray" else {"address": self._address}
        if not options and "RAY_ADDRESS" not in os.environ and probe(last_head_address()):
            # The cluster that Ray used last is gone; Ray would retry for minutes and fail.
            options = {"address": "local"}
        for remaining in reversed(range(MAX_CONNECT_ATTEMPTS)):
            try:
                ray.init(log_to_driver=False, logging_level="ERROR", **options)
            except Exception as error:  # Ray raises many types
                ray.shutdown()  # it may still be connected
                if not remaining or not is_transient(error):
                    text = _joined_lines(error)
                    # Ray writes "Version mismatch" or "version mismatch".
                    hint = "install the versions of its nodes" if "ersion mismatch" in text else ""
                    raise InputError(Fault("--on", f"{self._address}: {text}", hint)) from error
            else:
                break
        try:
            self._check()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect, which ends all running tasks."""
        self._ray.shutdown()

    @property
    def cores(self) -> int:
        """Cores of the cluster, as Ray counts them."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def _check(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        # No retries on other nodes: each node has to report its own version.
        probe = self._ray.remote(num_cpus=0, max_retries=0)(_sources_there)
        responses = {}
        for node in self._ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                responses[node["NodeName"]] = probe.options(scheduling_strategy=strategy).remote()
        if not responses:
            raise InputError(Fault("--on", "no node of the cluster has a core"))
        for name, response in responses.items():
            hint = f"install shadowprice {__version__} there, from the same sources as here"
            try:
                digest = self._ray.get(response, timeout=NODE_PROBE_TIMEOUT_SECONDS)
            except Exception as error:  # a node that leaves, or has no such package
                raise InputError(Fault(f"--on: node {name}", _last_line(error), hint)) from error
            if digest != sources():
                raise InputError(Fault(f"--on: node {name}", "has another version", hint))

    def run(self, work: Work, cases: Sequence[tuple[Any, ...]], began: OnStart) -> Runs:
        """Execute one run per case, one at a time per core; see `RunBackend.run`."""
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

        del began  # only Ray knows when a run starts
        task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(run_timed)
        waiting = deque(enumerate(cases))
        pending: dict[Any, int] = {}
        # After an error, submitted runs end with the connection. Cancelling them is unsafe: a
        # result that arrives at that moment aborts the whole driver (Ray 2.60).
        while waiting or pending:
            while waiting and len(pending) < QUEUED_RUNS_PER_CORE * max(self.cores, 1):
                index, case = waiting.popleft()
                pending[task.remote(work, case)] = index
            ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=1.0)
            for reference in ready:
                try:
                    result, seconds = self._ray.get(reference)
                except RayTaskError as error:  # the run itself failed
                    raise error.cause if error.cause is not None else error from None
                except RayError as error:
                    index = pending[reference]
                    raise ShadowpriceError(
                        f"run {index + 1} of {len(cases)} was lost {RETRIES + 1} times: "
                        f"{_last_line(error)}"
                    ) from error
                yield pending.pop(reference), result, seconds


def _sources_there() -> str:
    return sources()  # Ray takes plain functions only


class _MissingRayError(MissingExtraError):
    """Exits with 2, because the option ``--on`` is wrong, not the run."""

    exit_code = 2


def _joined_lines(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line)[:300] or type(error).__name__


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


# ------------------------------------------------------------------ processor times


@dataclass
class CpuTimes:
    """Processor time of an experiment in seconds."""

    runs: list[float] = field(default_factory=list)  # time of each run
    rest: float = 0.0  # time of the serial part: combining tables, drawing

    def on(self, cores: int) -> float:
        """Estimate the time on a number of idle cores as fast as the measured ones."""
        # Longest run first, each on the core that is free first; then the serial part.
        free = [0.0] * cores
        for seconds in sorted(self.runs, reverse=True):
            heapreplace(free, free[0] + seconds)
        return max(free) + self.rest


# ------------------------------------------------------------------ comparisons


Files = dict[str, bytes]  # files of a run directory by name


def run_files(scenario: Scenario, choice: PolicyChoice) -> Files:
    """Run a scenario under a policy, and return the files of its run directory."""
    run = run_policy(scenario, choice)
    with TemporaryDirectory() as folder:
        write_run(run, Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def compare_spread(
    spread: RunBackend,
    scenarios: Sequence[Scenario],
    choices: Sequence[PolicyChoice],
    folder: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[RunData], list[SeedRun]]:
    """Run every policy with every seed.

    ``scenarios`` has one element per seed. The runs of the first seed go to ``folder`` and are read
    from there lazily. ``progress`` is called with the finished and the total number of runs. Return
    the runs of the first seed, in the order of ``choices``, and those of the other seeds.
    """
    cases = [(scenario, choice) for scenario in scenarios for choice in choices]
    files_by_index: dict[int, Files] = {}
    for index, files, _ in spread.run(run_files, cases, lambda _: None):
        files_by_index[index] = files
        if progress is not None:
            progress(len(files_by_index), len(cases))
    runs: list[RunData] = []
    measured: list[SeedRun] = []
    for index, (scenario, choice) in enumerate(cases):
        first = index < len(choices)
        with nullcontext(str(folder)) if first else TemporaryDirectory() as parent:
            target = Path(parent) / folder_name(choice.label)
            target.mkdir()
            for name, content in files_by_index.pop(index).items():
                (target / name).write_bytes(content)
            run = read_run(target)
            if first:
                runs.append(run)
            else:
                measured.append((choice.label, scenario.seed, run.info))
    return runs, measured


def comparison_cache(spread: RunBackend, folder: Path) -> CachingBackend:
    """Return a backend that stores a comparison's runs until all are done.

    A scenario contains functions, which have no digest. So the key of a run consists of the
    recorded inputs, the seed and the policy.
    """

    def key(case: tuple[object, ...]) -> bytes:
        scenario, choice = case
        assert isinstance(scenario, Scenario)
        assert isinstance(choice, PolicyChoice)
        inputs = [repr(value) for value in scenario.inputs]
        description = (
            inputs,
            dict(scenario.options),
            scenario.seed,
            scenario.until,
            len(scenario.jobs),
        )
        policy = (choice.label, choice.name, choice.origin, sorted(choice.settings.items()))
        return repr((description, *policy)).encode()

    return CachingBackend(spread, folder, key)
