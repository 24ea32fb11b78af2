"""What happened on the servers: heat maps of load and price over servers and slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shadowprice.results.files import Run
from shadowprice.results.report.heat import LOAD, PRICE, Floats, heat_map
from shadowprice.results.report.sections import figure, section


@section("Servers", 40)
def servers(run: Run) -> str | None:
    """Return a heat map of load, and one of prices where the policy posts them."""
    if not len(run.heat) or not len(run.slots):
        return None
    share, shape = _matrix(run, "share")
    remark = "A row is a server, a column a slot: the used share of its scarcest resource."
    if shape["servers_per_row"] > 1 or shape["slots_per_bin"] > 1:
        remark = (
            f"A row is {_plural(shape['servers_per_row'], 'server')}, a column "
            f"{_plural(shape['slots_per_bin'], 'slot')}: the mean used share of the scarcest "
            "resource."
        )
    load = heat_map(
        share, **shape, ramp=LOAD, low=0.0, high=1.0, log=False, what="used share of a server"
    )
    parts = [figure("Allocation", load, remark)]
    price, _ = _matrix(run, "price")
    positive = price[np.isfinite(price) & (price > 0)]
    if len(positive):
        high = float(positive.max())
        low = max(float(positive.min()), high * 1e-6)  # further down, prices differ for no reader
        log = high / low > 20
        drawn = heat_map(
            price,
            **shape,
            ramp=PRICE,
            low=low if log else 0.0,
            high=high if high > low or not log else low * 10,
            log=log,
            what="price of a server, utility a slot",
        )
        remark = "What all of a server's resources cost together for a slot."
        parts.append(figure("Prices", drawn, remark))
    return "".join(parts)


def _plural(count: int, noun: str) -> str:
    return f"one {noun}" if count == 1 else f"{count} {noun}s"


def _matrix(run: Run, column: str) -> tuple[Floats, Mapping[str, Any]]:
    """Return a column of the heat table as rows of servers and columns of slots, and its shape."""
    bins = run.heat["slot"].unique(maintain_order=True).to_numpy()
    groups = run.heat["server"].unique(maintain_order=True).to_numpy()
    values = run.heat[column].to_numpy().astype(np.float64).reshape(len(bins), len(groups)).T
    first = int(run.slots.item(0, "slot"))
    return values, {
        "first_slot": first,
        "slots_per_bin": int(bins[1] - bins[0]) if len(bins) > 1 else max(len(run.slots), 1),
        "slots": len(run.slots),
        "names": run.server_names,
        "servers_per_row": int(groups[1] - groups[0]) if len(groups) > 1 else len(run.server_names),
    }
