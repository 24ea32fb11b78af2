"""Sections on the servers: load and price over servers and slots, timeline of one server."""

from __future__ import annotations

import numpy as np

from shadowprice.results.job_history_text import pluralize
from shadowprice.results.report.heat import HeatGrid, heat_map
from shadowprice.results.report.sections import figure, section
from shadowprice.results.run_directory import RunData


@section("Servers", 40)
def servers(run: RunData) -> str | None:
    """Return a heat map of load, and one of prices if the policy posts them."""
    if not len(run.heat) or not len(run.slots):
        return None
    share = _grid(run, "share").fitted()
    remark = "A row is a server, a column a slot: the used share of its scarcest resource."
    if share.per_row > 1 or share.per_bin > 1:
        remark = (
            f"A row is {pluralize(share.per_row, 'server')}, a column "
            f"{pluralize(share.per_bin, 'slot')}: the mean used share of the scarcest resource."
        )
    load = heat_map(
        share,
        ramp="load",
        low=0.0,
        high=1.0,
        log=False,
        what="used share of a server",
        title="Load",
    )
    parts = [figure("Load", load, f"{remark} {_PRESS}")]
    price = _grid(run, "price").fitted()
    positive = price.values[np.isfinite(price.values) & (price.values > 0)]
    if len(positive):
        high = float(positive.max())
        low = max(float(positive.min()), high * 1e-6)  # lower prices are indistinguishable
        log = high / low > 20
        drawn = heat_map(
            price,
            ramp="price",
            low=low if log else 0.0,
            high=high if high > low or not log else low * 10,
            log=log,
            what="price of a server, utility a slot",
            title="Price",
        )
        remark = "Price of all of a server's resources for one slot."
        parts.append(figure("Prices", drawn, remark))
    return "".join(parts)


_PRESS = "Select a server for its timeline."


@section("One server", 42)
def one_server(run: RunData) -> str | None:
    """Return the element of a server's timeline, which the page's script draws."""
    if not len(run.allocations):
        return None
    return '<div id="server-timeline"></div>'


def _grid(run: RunData, column: str) -> HeatGrid:
    """Return a column of the heat table as a grid of servers and slots."""
    bins = run.heat["slot"].unique(maintain_order=True).to_numpy()
    groups = run.heat["server"].unique(maintain_order=True).to_numpy()
    values = run.heat[column].to_numpy().astype(np.float64).reshape(len(bins), len(groups)).T
    names = run.server_names
    per_row = int(groups[1] - groups[0]) if len(groups) > 1 else len(names)
    return HeatGrid(
        values,
        first=int(run.slots.item(0, "slot")),
        per_bin=int(bins[1] - bins[0]) if len(bins) > 1 else max(run.slot_count, 1),
        slots=run.slot_count,
        names=[names[row * per_row] for row in range(len(groups))],
        per_row=per_row,
    )
