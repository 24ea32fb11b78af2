"""The option `--values` of `simulate`, and the same in Python."""

from __future__ import annotations

from typing import Any

import pytest

import shadowprice
from shadowprice.cli.main import main
from shadowprice.core.errors import InputError

CLUSTER: dict[str, Any] = {
    "slot": "1h",
    "horizon": 40,
    "servers": [{"name": "gpu", "capacity": {"gpu": 2}}],
}


def record(name: str, tenant: str, value: float, arrival: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "tenant": tenant,
        "arrival": f"{arrival} slots",
        "steps": 4,
        "minibatch_time": "1h",
        "worker": {"gpu": 2},
        "utility": {"kind": "deadline", "value": value, "by": "5 slots"},
    }


def jobs(factor: float) -> list[dict[str, Any]]:
    """Return two jobs of which one fits; the tenant of the second multiplies its values."""
    return [
        record("first", "honest", 30.0),
        record("second", "loud", 20.0 * factor),
        record("third", "loud", 10.0 * factor),
    ]


def outcomes(factor: float, values: str) -> dict[str, float]:
    run = shadowprice.simulate(CLUSTER, jobs(factor), "rolling", values=values)
    assert run.info["options"].get("values", "stated") == values
    rows = run.jobs.select("job", "utility").drop_nulls().rows()
    return {job: utility for job, utility in rows if utility}


def test_a_tenant_that_multiplies_its_values_displaces_none() -> None:
    assert outcomes(1, "stated") == {"first": 30.0}
    assert outcomes(1000, "stated") == {"second": 20_000.0}
    assert set(outcomes(1, "relative")) == set(outcomes(1000, "relative"))


def test_jobs_earn_what_was_stated() -> None:
    earned = outcomes(1000, "relative")
    stated = {entry["name"]: entry["utility"]["value"] for entry in jobs(1000)}
    assert earned
    assert earned == {name: stated[name] for name in earned}


def test_invalid_arguments_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    with pytest.raises(InputError, match="values: expected stated or relative, got 'own'"):
        shadowprice.simulate(CLUSTER, jobs(1), values="own")
    with pytest.raises(
        InputError, match="values: 'relative' needs known lengths, got lengths unknown"
    ):
        shadowprice.simulate(CLUSTER, jobs(1), "fifo", values="relative", lengths="unknown")
    with pytest.raises(InputError, match="advice_seconds: needs stated values"):
        shadowprice.simulate(CLUSTER, jobs(1), values="relative", advice_seconds=1)
    call = ["simulate", "-c", "c.yaml", "-j", "j.yaml", "--out", str(tmp_path / "run")]
    assert main([*call, "--advice", "--values", "relative"]) == 2
    assert "--advice: needs stated values" in capsys.readouterr().err
