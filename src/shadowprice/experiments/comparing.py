"""A comparison of policies whose runs are distributed, one run per policy and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from shadowprice.experiments.spreading import CachingBackend, RunBackend
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.run_directory import RunData, folder_name, read_run, write_run
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.simulator.trials import SeedRun

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

    def took(index: int, files: Files, seconds: float) -> None:
        del seconds
        files_by_index[index] = files
        if progress is not None:
            progress(len(files_by_index), len(cases))

    spread.run(run_files, cases, lambda _: None, took)
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
    """Return a store that keeps a comparison's runs until all are done.

    A scenario contains functions, which can't be compared by content. So the key consists of the
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
