"""A comparison whose runs are spread: every policy from every seed beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from shadowprice.experiments.spreading import Kept, Spread
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.files import Run, folder_name, read_run, write_run
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.simulator.trials import Measured

Files = dict[str, bytes]
"""A run directory: its files by name."""


def run_files(scenario: Scenario, choice: PolicyChoice) -> Files:
    """Run a scenario under a policy, and return what its run directory holds."""
    run = run_policy(scenario, choice)
    with TemporaryDirectory() as folder:
        write_run(run, Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def compare_spread(
    spread: Spread,
    scenarios: Sequence[Scenario],
    choices: Sequence[PolicyChoice],
    folder: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Run], list[Measured]]:
    """Run every policy from every seed.

    Parameters
    ----------
    spread : Spread
        What makes the runs.
    scenarios : sequence of Scenario
        One a seed.
    choices : sequence of PolicyChoice
        The policies.
    folder : Path
        Where the runs from the first seed are put; they are read from there when they are asked.
    progress : callable, optional
        Called with runs done and runs in all.

    Returns
    -------
    list of Run
        Those from the first seed, in the order of the choices.
    list of (label, seed, ``run.json``)
        Of the other seeds.
    """
    cases = [(scenario, choice) for scenario in scenarios for choice in choices]
    found: dict[int, Files] = {}

    def took(at: int, files: Files, seconds: float) -> None:
        del seconds
        found[at] = files
        if progress is not None:
            progress(len(found), len(cases))

    spread.run(run_files, cases, lambda _: None, took)
    runs: list[Run] = []
    measured: list[Measured] = []
    for at, (scenario, choice) in enumerate(cases):
        first = at < len(choices)
        with nullcontext(str(folder)) if first else TemporaryDirectory() as place:
            target = Path(place) / folder_name(choice.label)
            target.mkdir()
            for name, content in found.pop(at).items():
                (target / name).write_bytes(content)
            run = read_run(target)
            if first:
                runs.append(run)
            else:
                measured.append((choice.label, scenario.seed, run.info))
    return runs, measured


def kept_comparison(spread: Spread, folder: Path) -> Kept:
    """Return what keeps a comparison's runs until all are done.

    A scenario holds functions, which have no content to compare; what a run depends on is what its
    record says of inputs, seed and policy.
    """

    def key(case: tuple[object, ...]) -> bytes:
        scenario, choice = case
        assert isinstance(scenario, Scenario)
        assert isinstance(choice, PolicyChoice)
        inputs = [repr(one) for one in scenario.inputs]
        told = (inputs, dict(scenario.options), scenario.seed, scenario.until, len(scenario.jobs))
        policy = (choice.label, choice.name, choice.origin, sorted(choice.settings.items()))
        return repr((told, *policy)).encode()

    return Kept(spread, folder, key)
