"""The functions of the package return the results of the commands as frames."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import shadowprice
from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from tests.support.waiting import WAIT_LIMIT_SECONDS

CLUSTER: dict[str, Any] = {
    "slot": "10min",
    "horizon": 40,
    "servers": [
        {"name": "gpu", "count": 2, "capacity": {"gpu": 4}, "cost": 8},
        {"name": "old", "capacity": {"gpu": 2}, "cost": 2},
    ],
}
JOBS: list[dict[str, Any]] = [
    {
        "name": f"job-{index}",
        "arrival": f"{index // 2} slots",
        "chunks": 1 + index % 4,
        "minibatches": 20 + 7 * index,
        "minibatch_time": "60s",
        "worker": {"gpu": 1 + index % 2},
        "utility": {"kind": "linear", "value": 40, "slope": -1.5},
    }
    for index in range(12)
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "c.yaml").write_text(json.dumps(CLUSTER))  # JSON is YAML
    (tmp_path / "j.yaml").write_text(json.dumps({"jobs": JOBS}))
    return tmp_path


def quiet(info: dict[str, Any]) -> dict[str, Any]:
    """Remove what differs from run to run: times, paths of inputs, and digests of files."""
    own = {"timing", "inputs", "digest", "files"}
    return {name: value for name, value in info.items() if name not in own}


def test_simulate_returns_the_results_of_the_command(files: Path) -> None:
    words = ("-c", str(files / "c.yaml"), "-j", str(files / "j.yaml"), "-q")
    assert main(("simulate", *words, "-p", "srtf", "--out", str(files / "run"))) == 0
    kept = shadowprice.open_run(files / "run")
    for run in (
        shadowprice.simulate(CLUSTER, JOBS, "srtf"),
        shadowprice.simulate(str(files / "c.yaml"), files / "j.yaml", "srtf"),
    ):
        assert quiet(run.info) == quiet(kept.info)
        for name in ("jobs", "slots", "allocations", "decisions"):
            assert getattr(run, name).equals(getattr(kept, name)), name
    assert set(kept.allocations["server"]) == {"gpu-0", "gpu-1", "old"}
    assert kept.decisions["outcome"].unique().to_list() == ["queued"]
    assert kept.payments is None
    reopened = shadowprice.open_run(run.save(files / "saved"))
    assert reopened.jobs.equals(run.jobs)
    assert (files / "saved" / "report.html").exists()
    printed = repr(run).splitlines()
    assert printed[0] == "Result of srtf"
    assert printed[2].split() == ["total", "utility", f"{run.summary['total_utility']:.0f}"]
    assert repr(kept) == repr(run)  # without elapsed times, which differ
    with pytest.raises(InputError, match="contains files"):
        run.save(files)  # other files are there


def test_runs_in_memory_support_slots_and_differences() -> None:
    first = shadowprice.simulate(CLUSTER, JOBS, "drf")
    second = shadowprice.simulate(CLUSTER, JOBS, "fifo", parameters={"workers": "min"})
    running = first.at(2).jobs.filter(pl.col("state") == "running")
    assert set(running["job"]) == set(first.allocations.filter(pl.col("slot") == 2)["job"])
    assert first.at("20min").jobs.equals(first.at(2).jobs)
    for wrong in ("soon", -1, True, ""):
        with pytest.raises(InputError, match=r"slot: .*is not a slot.*write a number from 0 on"):
            first.at(wrong)
    result = first.diff(second)
    gained = second.summary["total_utility"] - first.summary["total_utility"]
    assert result.jobs["gain"].sum() == pytest.approx(gained)


def test_compare_and_whatif_return_the_results_of_the_commands(
    files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    both = shadowprice.compare(
        CLUSTER, JOBS, ["fifo", ("srtf", {"workers": "min"}), "drf"], seeds=3
    )
    assert list(both.runs) == [*both] == ["fifo", "srtf workers=min", "drf"]
    assert len(both) == 3
    assert "drf" in both
    assert "oasis" not in both
    assert len(both.frame) == 9
    words = ("-c", str(files / "c.yaml"), "-j", str(files / "j.yaml"), "-q", "-o", "json")
    assert main(("compare", *words, "-p", "fifo,srtf?workers=min,drf", "--seeds", "3")) == 0
    captured = json.loads(capfd.readouterr().out)["trials"]["policies"]
    for measure, policy, mean in both.means.select("metric", "policy", "mean").rows():
        if measure != "decision_p99":
            assert captured[policy][measure]["mean"] == pytest.approx(mean)
    for row in both.tests.filter(pl.col("metric") == "total_utility").to_dicts():
        kept = captured[row["policy"]]["total_utility"]["against_first"]
        assert (row["p"], row["p_holm"]) == (kept["p"], kept["p_holm"])
    assert both["drf"].summary["finished"] == 12

    place = both.save(files / "compared")
    kept = json.loads((place / "compare.json").read_text("utf-8"))
    assert list(kept["policies"]) == list(both.runs)
    assert kept["trials"]["policies"].keys() == captured.keys()
    assert "Over 3 seeds" in (place / "compare.html").read_text("utf-8")
    assert shadowprice.open_run(place / "drf").summary == both["drf"].summary
    assert both.save(place) == place  # an earlier comparison is replaced
    with pytest.raises(InputError, match="compared/drf"):
        both.save(place / "drf")  # a run is not

    result = shadowprice.whatif(CLUSTER, JOBS, "drf", changes=[{"gpu": 1}, {"old": -1}])
    assert main(("whatif", *words, "-p", "drf", "--add", "gpu:1", "--remove", "old:1")) == 0
    rows = json.loads(capfd.readouterr().out)["runs"]
    gains = {row["change"]: row["gain"] for row in rows}
    assert dict(result.gains.select("change", "gain").rows()) == {
        name: gain for name, gain in gains.items() if name != "as it is"
    }
    assert result.gains.columns == [
        "change", "policy", "gain", "gain_per_server", "gain_per_cost",
        "waiting_saved_hours",
    ]  # fmt: skip
    assert set(shadowprice.whatif(CLUSTER, JOBS, "drf").gains["change"]) == {"+1 gpu", "+1 old"}


def test_the_same_run_over_and_over_is_no_sample() -> None:
    same = [("srtf", {"workers": "min"}), "drf"]
    fixed = shadowprice.compare(CLUSTER, JOBS, same, seeds=3)
    assert fixed.tests.is_empty()
    assert "nothing in this comparison depends on the seed" in repr(fixed)
    means = fixed.means.filter(pl.col("metric") != "decision_p99")
    assert means.select(pl.col("low", "high").is_null().all()).row(0) == (True, True)
    assert set(means["count"]) == {1}

    # FIFO draws worker counts, so its further results are samples; those of DRF aren't.
    both = shadowprice.compare(CLUSTER, JOBS, [*same, "fifo"], seeds=3)
    assert set(both.tests["policy"]) == {"fifo"}
    assert "depends on the seed" not in repr(both)
    [*counts] = both.means.filter(pl.col("metric") == "mean_jct")["count"]
    assert counts == [1, 1, 3]
    assert "depends on the seed" not in repr(shadowprice.compare(CLUSTER, JOBS, same))


def test_incidents_are_accepted_as_in_a_file(files: Path) -> None:
    happens = [
        {"slot": 3, "server_lost": "old"},
        {"slot": 4, "cancel": "job-3"},
        {"slot": 9, "server_back": "old"},
    ]
    path = files / "incidents.yaml"
    path.write_text(json.dumps({"incidents": happens}))
    read = shadowprice.simulate(CLUSTER, JOBS, "drf", incidents=path)
    given = shadowprice.simulate(CLUSTER, JOBS, "drf", incidents=iter(happens))
    assert quiet(given.info) == quiet(read.info)
    assert given.jobs.equals(read.jobs)
    assert given.jobs["outcome"].to_list().count("cancelled") == 1
    compared = shadowprice.compare(CLUSTER, JOBS, "drf", incidents=happens)
    assert compared["drf"].jobs.equals(read.jobs)
    with pytest.raises(InputError, match=r"incidents\[1\].cancel: .*did you mean 'job-3'"):
        shadowprice.simulate(CLUSTER, JOBS, incidents=[happens[0], {"slot": 4, "cancel": "job_3"}])
    with pytest.raises(InputError, match=r"incidents: is a mapping; give the list of incidents"):
        shadowprice.simulate(CLUSTER, JOBS, incidents={"incidents": happens})


def test_invalid_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'srtf'"):
        shadowprice.simulate(CLUSTER, JOBS, "srft")
    with pytest.raises(InputError, match="minibatch_time"):
        shadowprice.simulate(CLUSTER, [{**JOBS[0], "minibatch_time": "fast"}])
    with pytest.raises(InputError, match=r"jobs\[1\].name: duplicate job name"):
        shadowprice.simulate(CLUSTER, [JOBS[0], JOBS[0]])
    with pytest.raises(InputError, match="capacity"):
        shadowprice.simulate({**CLUSTER, "servers": [{"name": "a", "capacity": {}}]}, JOBS)
    with pytest.raises(InputError, match="'drf' is repeated"):
        shadowprice.compare(CLUSTER, JOBS, ["drf", "drf"])
    with pytest.raises(
        InputError, match="no workload is given; give jobs with cluster, or give trace"
    ):
        shadowprice.simulate(CLUSTER)
    with pytest.raises(AttributeError, match="no attribute 'simulated'"):
        _ = shadowprice.simulated  # type: ignore[attr-defined]


def test_importing_the_package_imports_nothing_but_pkgutil() -> None:
    code = (
        "import sys, pkgutil; before = set(sys.modules); import shadowprice; "
        "print(sorted(set(sys.modules) - before)); print('simulate' in dir(shadowprice))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_LIMIT_SECONDS,
    ).stdout.splitlines()
    assert ran == ["['shadowprice']", "True"]


@pytest.mark.parametrize("seeds", [0, -1, True, 2.0, 10**9])
def test_seed_count_is_limited(seeds: Any) -> None:
    with pytest.raises(InputError, match="seeds"):
        shadowprice.compare(CLUSTER, JOBS, "srtf", seeds=seeds)
    with pytest.raises(InputError, match="seeds"):
        shadowprice.whatif(CLUSTER, JOBS, "srtf", seeds=seeds)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "60", True, [60]])
def test_a_time_for_advice_is_a_time(seconds: Any) -> None:
    message = re.escape(f"advice_seconds: expected 0 or more seconds, got {seconds!r}; write 60")
    with pytest.raises(InputError, match=f"^{message}$"):
        shadowprice.simulate(CLUSTER, JOBS, "srtf", advice_seconds=seconds)
    with pytest.raises(InputError, match=f"^{message}$"):
        shadowprice.compare(CLUSTER, JOBS, "srtf", advice_seconds=seconds)


POLICIES_HINT = r"write \['oasis', \('fifo', \{'backfill': 2\}\)\]"
CHANGES_HINT = r"write \[\{'gpu': 2\}, \{'gpu': -1\}\]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policies": [("oasis",)]}, r"policies\[0\]: expected a name, .*; " + POLICIES_HINT),
        ({"policies": ["srtf", 5]}, r"policies\[1\]: expected a name, .*, got 5; "),
        ({"policies": None}, "policies: expected a list, got None; " + POLICIES_HINT),
        ({"policies": {"oasis": {}}}, "policies: expected a list, got .*; " + POLICIES_HINT),
        ({"policies": [("oasis", ["x"])]}, r"policies\[0\]: expected a mapping by name, got .*"),
        ({"policies": [(5, {})]}, r"policies\[0\]: expected the name of a policy, got 5"),
        ({"changes": [3]}, r"changes\[0\]: expected a mapping by name, got 3; " + CHANGES_HINT),
        ({"changes": 3}, "changes: expected a list, got 3; " + CHANGES_HINT),
        ({"changes": [{"gpu": 1.5}]}, r"changes\[0\].gpu: expected a number of servers, got 1.5"),
        ({"changes": [{"gpu": 0}]}, r"changes\[0\].gpu: expected a number of servers, got 0"),
        ({"more": 1.5}, "more: expected a list, got 1.5; write 8, or"),
        ({"more": ["x"]}, "more: expected an amount of 1 or more, got 'x'"),
        ({"more": "tpu=8"}, "more: no server has 'tpu'"),
        ({"load": "x"}, "load: expected a number above 0, got 'x'; write 1.0"),
        ({"load": 0}, "load: expected a number above 0, got 0; write 1.0"),
        ({"load": 10**6}, "load: 1,000,000 exceeds the limit"),
        ({"slot": 5}, "slot: 5 is a duration without a unit"),
        ({"slot": "2 slots"}, "slot: '2 slots' is in slots"),
        ({"slot": "1h"}, "slot: applies only to the cluster that is sized to a trace, not to a gi"),
        ({"load": 0.5}, "load: applies only to the cluster that is sized to a trace, not to a gi"),
        ({"until": 5}, "until: 5 is a duration without a unit"),
        ({"until": "1s"}, "until: '1s' is less than a slot; write '300 slots'"),
        ({"jobs": 5}, "jobs: expected a list, got 5; give a list or a path"),
        ({"incidents": 5}, "incidents: expected a list, got 5; give a list or a path"),
        ({"skip_invalid": "no"}, "skip_invalid: expected True or False, got 'no'"),
        ({"jobs": None}, "no workload is given; give jobs with cluster, or give trace"),
        ({"cluster": None}, "cluster is missing; give the cluster of these jobs"),
        ({"trace": "philly:x"}, "both jobs and trace are given"),
    ],
)
def test_arguments_of_wrong_types_are_diagnosed(arguments: dict[str, Any], message: str) -> None:
    given = {"cluster": CLUSTER, "jobs": JOBS, "policies": "srtf", **arguments}
    with pytest.raises(InputError, match=f"^{message}"):
        shadowprice.whatif(**given)


def test_parameters_are_a_mapping() -> None:
    message = "^parameters: expected a mapping by name, got 'x'; write {'preset': 'paper'}$"
    with pytest.raises(InputError, match=message):
        shadowprice.simulate(CLUSTER, JOBS, "srtf", parameters="x")  # type: ignore[arg-type]


def test_numpy_numbers_are_accepted() -> None:
    numpy_jobs = (
        {
            **job,
            "chunks": np.int64(job["chunks"]),
            "worker": {"gpu": np.float64(job["worker"]["gpu"])},
            "utility": {**job["utility"], "slope": np.float32(-1.5)},
        }
        for job in JOBS
    )
    cluster = CLUSTER | {"horizon": np.int32(40)}
    given = shadowprice.simulate(
        cluster, numpy_jobs, "fifo", seed=np.int64(3), parameters={"backfill": np.int64(2)}
    )
    plain = shadowprice.simulate(CLUSTER, JOBS, "fifo", seed=3, parameters={"backfill": 2})
    assert given.jobs.equals(plain.jobs)
    assert given.info["seed"] == 3
    assert [entry["sha256"] for entry in given.info["inputs"][:1]] == [
        entry["sha256"] for entry in plain.info["inputs"][:1]
    ]
    curve = {
        **{key: value for key, value in JOBS[0].items() if key != "minibatch_time"},
        "chunks": 4,
        "throughput": dict(zip(np.array([1, 2, 4]), np.array([0.1, 0.2, 0.3]), strict=True)),
    }
    both = shadowprice.compare(CLUSTER, (entry for entry in [curve]), "srtf", seeds=np.int64(2))
    assert both["srtf"].summary["finished"] == 1
    assert both.trials.seeds == [0, 1]


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1", 2**63])
def test_seed_must_be_an_integer(seed: Any) -> None:
    with pytest.raises(InputError, match="seed"):
        shadowprice.simulate(CLUSTER, JOBS, "srtf", seed=seed)


def test_invalid_job_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="give the list of jobs in it"):
        shadowprice.simulate(CLUSTER, {"jobs": JOBS})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="parameters="):
        shadowprice.simulate(CLUSTER, JOBS, ("srtf", {}))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such file"):
        shadowprice.simulate(trace=Path("swf:nowhere"))  # type: ignore[arg-type]


def test_runs_can_be_pickled(tmp_path: Path) -> None:
    run = shadowprice.simulate(CLUSTER, JOBS, "rolling")
    run.save(tmp_path / "run")
    for original in (run, shadowprice.open_run(tmp_path / "run")):
        restored = pickle.loads(pickle.dumps(original))
        assert restored.jobs.equals(run.jobs)
        assert restored.decisions.equals(run.decisions)
        assert restored.at(2).jobs.equals(run.at(2).jobs)


def test_compare_json_has_the_rows_of_the_table(
    files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("-c", str(files / "c.yaml"), "-j", str(files / "j.yaml"), "-q", "-p", "oasis,fifo")
    assert main(("compare", *words, "--bound")) == 0
    table = capfd.readouterr().out
    assert main(("compare", *words, "--bound", "-o", "json")) == 0
    captured = json.loads(capfd.readouterr().out)
    drawn, _, *lines = table.splitlines()
    assert drawn.startswith(f"drawn at random with seed 0: {captured['drawn'][0]}")
    rows = [re.split(r"  +", line) for line in lines]
    assert [name for name, *_ in rows] == list(captured["measures"])
    for name, *texts in rows:
        if not name.startswith(("decision", "wall")):
            for text, value in zip(texts, captured["measures"][name].values(), strict=True):
                shown = 100 * value if text.endswith("%") else value
                assert float(text.rstrip("%").replace(",", "")) == pytest.approx(shown, rel=0.01)
    ends = [policy["summary"]["end"] for policy in captured["policies"].values()]
    assert ends[0] != ends[1]


def test_seeds_stay_within_the_limit() -> None:
    last = 2**63 - 1
    with pytest.raises(InputError, match="the last seed"):
        shadowprice.compare(CLUSTER, JOBS, "srtf", seed=last, seeds=2)
    with pytest.raises(InputError, match="the last seed"):
        shadowprice.whatif(CLUSTER, JOBS, "srtf", seed=last - 1, seeds=3)
    assert shadowprice.compare(CLUSTER, JOBS, "srtf", seed=last).trials.seeds == [last]


def test_policies_are_accepted_as_single_names(
    files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("-c", str(files / "c.yaml"), "-j", str(files / "j.yaml"), "-q", "-o", "json")
    for command in ("compare", "whatif"):
        messages = []
        for policies in (("-p", "srtf,fifo?backfill=2"), ("-p", "srtf", "-p", "fifo?backfill=2")):
            assert main((command, *words, *policies)) == 0
            messages.append(list(json.loads(capfd.readouterr().out)["policies"]))
        assert messages[0] == messages[1] == ["srtf", "fifo backfill=2"]


def test_payments_have_every_type_of_server() -> None:
    run = shadowprice.simulate(CLUSTER, JOBS, "srtf")
    paid = {"job": "job-0", "slot": 1, "payer": "a", "payee": "b"}
    records = [{**paid, "worker/v100": 0.5}] * 200 + [{**paid, "ps/large": 2.0}]
    many = shadowprice.api.Result(replace(run.run, payments=lambda: iter(records)))
    assert many.payments is not None
    assert many.payments.sum().select("worker/v100", "ps/large").row(0) == (100.0, 2.0)
    assert many.payments.null_count().sum_horizontal().item() == 0
    none = shadowprice.api.Result(replace(run.run, payments=lambda: iter(())))
    assert none.payments is not None
    assert none.payments.columns == ["job", "slot", "payer", "payee", "worker", "ps"]


def test_paths_may_begin_with_the_home_directory(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(files))
    run = shadowprice.simulate("~/c.yaml", "~/j.yaml", "srtf")
    assert run.save("~/run") == files / "run"
    assert shadowprice.open_run("~/run").jobs.equals(run.jobs)


@pytest.mark.parametrize("folder", [3, None, b"run"])
def test_an_invalid_path_is_an_input_error(folder: Any) -> None:
    with pytest.raises(InputError, match="folder: expected a path, got "):
        shadowprice.open_run(folder)


def test_a_null_character_in_a_path_is_an_input_error() -> None:
    with pytest.raises(InputError, match="cluster: contains a null character"):
        shadowprice.simulate("c\0.yaml", JOBS)
