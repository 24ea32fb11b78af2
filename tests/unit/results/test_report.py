"""The page of a run: complete, self-contained, and consistent with its tables."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from dataclasses import asdict, replace
from html import unescape
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.utility import Constant, Sigmoid
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results import tables
from shadowprice.results.comparison import (
    is_comparison,
    write_compared_run,
    write_comparison,
)
from shadowprice.results.metrics import summarise
from shadowprice.results.report import charts, comparison, inline_assets, page, sections
from shadowprice.results.report.charts import HeatGrid, heat_map
from shadowprice.results.report.comparison import render_comparison
from shadowprice.results.report.number_format import format_duration, format_number
from shadowprice.results.report.page import render_report, run_tiles
from shadowprice.results.report.tables import TableColumn, data_table
from shadowprice.results.run_builder import RunInput
from shadowprice.results.run_directory import RunData, read_run
from shadowprice.simulator.scenario import Scenario, record_run, run_policy
from shadowprice.simulator.source import ScenarioSource
from tests.support.examples import example_count
from tests.support.flat_rate import FlatPricePolicy
from tests.support.policies import RandomPolicy
from tests.support.report_pages import check_page, page_data, seed_runs, simulated_run, unpack_data
from tests.support.workloads import make_cluster, make_job


def test_the_page_is_whole_and_needs_no_network() -> None:
    run = simulated_run()
    text = render_report(run)
    check_page(text)
    for heading in (
        "Utility over time",
        "Servers",
        "Lateness",
        "Refusals",
        "Jobs",
        "One server",
        "Prices",
    ):
        assert f"<h2>{heading}</h2>" in text
    assert render_report(run) == text


def test_refusals_have_value_price_and_bottleneck() -> None:
    text = render_report(simulated_run(price=1e3))
    refusals = text.partition('<section id="refusals">')[2].partition("</section>")[0]
    table = page_data(refusals)[1]
    headings = [column["heading"] for column in table["columns"]]
    rows = [dict(zip(headings, row, strict=True)) for row in table["rows"]]
    assert len(rows) == 8
    assert "gpu of worker servers in slots" in rows[0]["first bottleneck"]
    assert rows[0]["price"] == 8000  # 8 worker-slots at a price of 1,000
    assert '<td class="num">8,000</td>' in refusals  # visible without a script too
    assert "No job was refused." in render_report(simulated_run(price=0.0))


@pytest.mark.parametrize("jobs", [0, 1, 4])
def test_tiny_runs_have_a_page(jobs: int) -> None:
    check_page(render_report(simulated_run(jobs=jobs)))
    check_page(render_report(simulated_run(jobs=jobs, price=1e9)))


def test_one_slot_is_singular_and_jobs_in_memory_are_counted() -> None:
    record = {
        "name": "a", "chunks": 1, "minibatches": 1, "minibatch_time": "60s",
        "worker": {"gpu": 1}, "utility": {"kind": "constant", "value": 1},
    }  # fmt: skip
    cluster = {"slot": "60s", "horizon": 1, "servers": [{"name": "g", "capacity": {"gpu": 1}}]}
    scenario, _ = ScenarioSource(cluster=cluster, jobs=[record], until="1 slots").scenario(0)
    text = render_report(run_policy(scenario, PolicyChoice("fifo")))
    assert "<h1>fifo: 1 job</h1>" in text
    assert "<b>1 slot</b>" in text
    assert "<dt>timespan</dt><dd>1 slot</dd>" in text
    assert "<dt>planning horizon</dt><dd>1 slot</dd>" in text
    assert "1 slots" not in text


def test_the_lead_of_a_comparison_keeps_names_and_counts_seeds(tmp_path: Path) -> None:
    run = simulated_run()
    trials = seed_runs().record()
    write_comparison([run, run], tmp_path, trials, drawn=["the numbers of workers under MyPolicy"])
    page = (tmp_path / "compare.html").read_text()
    lead = re.findall('<p class="lead">(.*?)</p>', page)[0]
    expected = "Drawn at random with 6 seeds, 0 to 5: the numbers of workers under MyPolicy."
    assert lead.endswith(expected)


def test_names_cannot_break_out_of_the_page() -> None:
    cluster = make_cluster(1, 1)
    name = '</script><script>alert("x")</script><b>&amp;'
    run = record_run(
        Scenario(
            cluster,
            [
                make_job(cluster, name, utility=Constant(1.0)),
                make_job(cluster, "b", utility=Constant(0.0)),
            ],
        ),
        "flat-rate",
        FlatPricePolicy(0.01),
    )
    text = render_report(run)
    check_page(text)
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>")
    (histories,) = [block for block in page_data(text) if "facts" in block]
    assert histories["jobs"]["job"] == [name, "b"]


def test_a_partial_run_says_so() -> None:
    run = simulated_run()
    run.info.update(partial=True, interrupted_in_slot=3)
    assert "Partial result: the run was interrupted (flat-rate in slot 3)" in render_report(run)


def test_comparison_shows_every_policy() -> None:
    cluster = make_cluster(3, 2)
    work = [
        make_job(
            cluster,
            f"job-{index}",
            arrival=index,
            utility=Sigmoid(5.0 + index, 0.5, 2.0) if index else Constant(3.0),
        )
        for index in range(6)
    ]
    runs = [
        record_run(Scenario(cluster, work, until=30), name, policy)
        for name, policy in (("flat-rate", FlatPricePolicy()), ("wanderer", RandomPolicy(1)))
    ]
    text = render_comparison(runs, [("total utility", ["60", "<5"], frozenset({0}))])
    check_page(text)
    assert '<td class="num best">60</td><td class="num">&lt;5</td>' in text
    assert text.count('href="wanderer/report.html"') == 1
    earned = [dict(run.jobs.select("job", "utility").iter_rows()) for run in runs]
    apart = {name for name in earned[0] if earned[0][name] != earned[1][name]}
    linked = re.findall(r'href="wanderer/report\.html#job=([\w-]+)"', text)
    assert set(linked) == apart
    assert apart


def test_every_policy_has_a_folder_that_the_comparison_links(tmp_path: Path) -> None:
    cluster = make_cluster(2, 1)
    scenario = Scenario(cluster, [make_job(cluster, f"job-{index}") for index in range(3)])
    names = [
        "oasis prices=fixed:/tmp/prices.json",
        "oasis prices=fixed:_tmp/prices.json",
        "rolling price=1e-7 note=50%#?&",
        "rolling " + "ü" * 300,
        "rolling " + "ü" * 301,
        "rolling \udcff",  # an undecodable byte of a path
        "wanderer",
    ]
    runs = [record_run(scenario, name, FlatPricePolicy()) for name in names[:-1]]
    runs.append(record_run(scenario, names[-1], RandomPolicy(1)))
    for run in runs:
        write_compared_run(run, tmp_path)
    write_comparison(runs, tmp_path)
    assert is_comparison(tmp_path)
    assert (tmp_path / "wanderer").is_dir()
    page = (tmp_path / "compare.html").read_text()
    check_page(page)
    links = re.findall(r'<th class="num"><a href="([^"]*)">', page)
    targets = [tmp_path / unquote(link, errors="surrogateescape") for link in links]
    assert [read_run(target.parent).policy for target in targets] == names
    assert all(target.is_file() for target in targets)


def test_a_comparison_shows_what_seeds_say() -> None:
    cluster = make_cluster(2, 1)
    runs = [
        record_run(Scenario(cluster, [make_job(cluster, "a")]), name, FlatPricePolicy())
        for name in ("flat-rate", "wanderer <b>")
    ]
    several = seed_runs()
    text = render_comparison(runs, [], several.record())
    check_page(text)
    section = text.partition('<section id="seeds">')[2].partition("</section>")[0]
    assert "<h2>Over 6 seeds</h2>" in section
    drawn = {chart["x_label"]: chart for chart in page_data(section)}
    row = drawn["total utility"]["rows"][1]
    values = several.values("wanderer <b>", "total_utility")
    mean = several.interval("wanderer <b>", "total_utility")
    assert mean is not None
    assert row["name"] == "wanderer <b>"
    assert row["dots"] == pytest.approx(values, rel=1e-4)
    assert row["five"] == pytest.approx(
        [mean.low, mean.low, mean.mean, mean.high, mean.high], rel=1e-4
    )
    test = several.against_first("total_utility")["wanderer <b>"]
    assert f"p {test.adjusted:.2g}" in section
    assert "in time, of all with a target, %" in drawn
    assert '<section id="seeds">' not in render_comparison(runs, [])


def test_dates_are_those_of_the_trace() -> None:
    run = simulated_run()
    assert page_data(render_report(run))[-1] == {"slot": 600, "origin": None}
    trace = RunInput("trace", "philly:a.csv", "", "2017-09-07T03:58:57")
    run.info["inputs"] = [asdict(trace)]
    assert page_data(render_report(run))[-1]["origin"] == 1504756737
    del run.info["inputs"][0]["begins"]  # as an earlier version wrote it
    assert page_data(render_report(run))[-1]["origin"] is None


def test_a_section_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def extra(run: RunData) -> str | None:
        return f"<p>{run.policy} has {len(run.jobs)} jobs</p>"

    monkeypatch.setattr(page, "SECTIONS", (("Extra", extra), ("None", lambda run: None)))
    html = render_report(simulated_run())
    assert '<section id="extra"><h2>Extra</h2><p>flat-rate has 8 jobs</p>' in html
    assert "<h2>None</h2>" not in html


# ---------------------------------------------------------------- what a page carries


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(st.text(st.characters(codec=None), max_size=40))
def test_any_text_is_harmless_and_seen(name: str) -> None:
    visible = inline_assets.escape_invisible(name)
    assert inline_assets.escape_invisible(visible) == visible
    assert all(unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in visible)
    assert unescape(inline_assets.text(name)) == visible
    block = inline_assets.data_script({"name": [name, name]})
    block.encode("utf-8")
    assert block.count("<") == 2
    assert unpack_data(block) == {"name": [visible, visible]}


def test_invisible_characters_are_written_out() -> None:
    assert inline_assets.escape_invisible("plain name") == "plain name"
    assert inline_assets.escape_invisible("a\x1b[31mb\x00") == "a\\x1b[31mb\\x00"
    assert inline_assets.escape_invisible("pay\u202elobda") == "pay\\u202elobda"
    assert inline_assets.escape_invisible("half \ud83d") == "half \\ud83d"
    assert inline_assets.escape_invisible("größe 数") == "größe 数"


def test_long_data_is_deflated_and_comes_back() -> None:
    value = {"column": [f"row {index}" for index in range(3000)]}
    block = inline_assets.data_script(value, "histories")
    assert block.startswith('<script type="text/plain" id="histories" data-deflated="json">')
    assert len(block) < len(json.dumps(value)) / 3
    assert unpack_data(block) == value
    cells = np.arange(256, dtype=np.uint8)
    assert np.array_equal(unpack_data(inline_assets.data_script(cells)), cells)


def test_the_library_is_the_one_stated() -> None:
    stated = json.loads(inline_assets.asset("echarts.json"))
    data = inline_assets.asset(inline_assets.LIBRARY).encode()
    assert hashlib.sha256(data).hexdigest() == stated["sha256"]
    assert len(data) == stated["bytes"]
    assert (
        f"Apache ECharts {stated['echarts']}, " in inline_assets.asset(inline_assets.LIBRARY)[:200]
    )
    licences = inline_assets.asset("echarts.LICENSE")
    for part in ("Apache License", "BSD 3-Clause License", "Mike Bostock", "Microsoft Corporation"):
        assert part in licences
    assert b"</script" not in data


def test_every_module_is_in_the_page() -> None:
    folder = resources.files("shadowprice.results.report").joinpath("assets")
    modules = {file.name for file in folder.iterdir() if file.name.endswith(".mjs")}
    assert modules == set(inline_assets.MODULES)
    program = inline_assets.scripts()
    assert not re.search(r"^(import|export) ", program, re.MULTILINE)
    for index, name in enumerate(inline_assets.MODULES):
        imported = re.findall(
            r'^import .* from "\./(.*)";$', inline_assets.asset(name), re.MULTILINE
        )
        assert set(imported) <= set(inline_assets.MODULES[:index])
        for dangerous in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert dangerous not in inline_assets.asset(name)


# ---------------------------------------------------------------- heat maps


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 30), st.booleans())
def test_heat_maps_carry_their_values(seed: int, rows: int, bins: int, log: bool) -> None:
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.01, 1.0, (rows, bins))
    values[rng.random((rows, bins)) < 0.2] = 0.0
    grid = HeatGrid(values, 5, 2, 2 * bins, [f"gpu-{index}" for index in range(rows)], 1)
    text = heat_map(
        grid,
        ramp="load",
        low=0.01 if log else 0.0,
        high=1.0,
        log=log,
        what="share",
        title="Load",
    )
    result, cells = page_data(text)
    assert (result["rows"], result["bins"], result["first"], result["bin"]) == (rows, bins, 5, 2)
    share = cells.reshape(rows, bins) / 255
    read = np.where(share > 0, 0.01 * 100.0**share, 0.0) if log else share
    assert ((read > 0) == (values > 0)).all()
    assert np.abs(np.log(read[read > 0] / values[read > 0])).max(initial=0) < 0.04 or not log
    assert log or np.abs(read - values).max() < 0.006


def test_the_largest_heat_map_of_noise_stays_small() -> None:
    noise = np.random.default_rng(0).random((512, 2000))
    grid = HeatGrid(noise, 0, 1, 2000, [f"gpu-{index}" for index in range(512)], 1).fitted()
    text = heat_map(grid, ramp="load", low=0, high=1, log=False, what="share", title="Load")
    assert len(text) < 220_000


def test_large_heat_maps_join_their_bins() -> None:
    values = np.arange(24.0).reshape(2, 12)
    values[0, :2] = np.nan
    grid = HeatGrid(values, 3, 5, 60, ["a", "b"], 1)
    joined = grid.fitted(13)
    assert joined.per_bin == 10
    assert np.isnan(joined.values[0, 0])
    assert joined.values[1].tolist() == [12.5, 14.5, 16.5, 18.5, 20.5, 22.5]
    assert grid.fitted(24) is grid
    odd = HeatGrid(values[:, :5], 3, 5, 25, ["a", "b"], 1).fitted(6)
    assert odd.values[1].tolist() == [12.5, 14.5, 16.0]


# ---------------------------------------------------------------- charts, scales, tables


def test_numbers_as_a_reader_wants_them() -> None:
    rows = [
        format_number(v) for v in (0, 12, 1234567.8, 3.14159, 0.0123456, 1e-300, 0.5, float("inf"))
    ]
    assert rows == ["0", "12", "1,234,568", "3.14", "0.0123", "0", "0.5", "∞"]
    assert [format_duration(s) for s in (1200, 0.000042, 90000, 3600, 0.25, -0.01)] == [
        "20 min",
        "42 µs",
        "1.04 d",
        "1 h",
        "250 ms",
        "-10 ms",
    ]
    # Rounding never gives a whole of the larger unit: 24 h, 60 min.
    assert [format_duration(s) for s in (86_399, 3_599.9, 59.99, 0.9999)] == [
        "1 d",
        "1 h",
        "1 min",
        "1 s",
    ]


def test_numbers_keep_every_digit_before_the_decimal_point() -> None:
    values = np.array([1234567.0, 1234567.8, 12345.678, 0.0012345678, np.nan, np.inf, 1e300, -7])
    shown = inline_assets.round_numbers(values, 5)
    assert shown == [1234567, 1234568, 12346, 0.0012346, None, None, 1e300, -7]
    text = data_table([TableColumn("name"), TableColumn("n", numeric=True)], [("x", 1234567.8)])
    assert "1,234,568" in text


def test_thinning_keeps_sums_and_gaps() -> None:
    values = np.arange(10.0)
    positions, means = charts.downsample(values, 4)
    assert positions.tolist() == [0, 3, 6, 9]
    assert means.tolist() == [1.0, 4.0, 7.0, 9.0]
    positions, lasts = charts.downsample(values, 4, last=True)
    assert positions.tolist() == [2, 5, 8, 9]
    assert lasts.tolist() == [2.0, 5.0, 8.0, 9.0]
    _, gaps = charts.downsample(np.array([np.nan, np.nan, 1.0, np.nan]), 2)
    assert np.isnan(gaps[0])
    assert gaps[1] == 1.0


def test_a_line_carries_its_numbers() -> None:
    text = charts.line_chart(
        np.array([0.0, 1.0, 2.0]),
        [("a<b", np.array([1.0, np.nan, 3.5]), 2)],
        x_label="slot",
        y_label="jobs",
        steps=True,
    )
    (data,) = page_data(text)
    assert data["series"] == [{"name": "a<b", "colour": 2, "values": [1, None, 3.5]}]
    assert data["x"] == {"first": 0, "step": 1, "count": 3}
    assert data["end"] == 3


def test_boxes_carry_their_quantiles_and_few_dots() -> None:
    few, many = np.arange(5.0), np.linspace(-1, 1, 1001)
    boxes = [("few", few, 0), ("many", many, 0), ("none", few[:0], 0)]
    (data,) = page_data(charts.box_plot(boxes, x_label="slots", zero="on target"))
    assert data["rows"][0]["five"] == [0.2, 1, 2, 3, 3.8]
    assert data["rows"][0]["dots"] == [0, 1, 2, 3, 4]
    assert data["rows"][1]["dots"] == []
    assert data["rows"][1]["count"] == 1001
    assert "five" not in data["rows"][2]


def test_tables_say_what_is_left_out() -> None:
    columns = [TableColumn("job"), TableColumn("value", numeric=True)]
    rows = [[f"<{index}>", float(index)] for index in range(5000)]
    text = data_table(columns, rows, total=9000, remark="those worth most.")
    (kept,) = page_data(text)
    assert len(kept["rows"]) == 1000
    assert kept["rows"][3] == ["<3>", 3]
    assert "1,000 of 9,000 are shown: those worth most." in text
    assert text.count("<tr>") == 11
    assert "&lt;3&gt;" in text
    assert "<script" not in data_table(columns, rows[:3])
    holes = data_table(columns, [["a", float("nan")]] * 8)
    assert page_data(holes)[0]["rows"][0] == ["a", None]


def test_the_number_of_refused_jobs_counts_no_dropped_ones() -> None:
    run = simulated_run(1e9)
    given_up = pl.when(pl.col("job") == run.jobs["job"][0]).then(pl.lit("dropped"))
    jobs = run.jobs.with_columns(given_up.otherwise("outcome").alias("outcome"))
    changed = replace(run, jobs=jobs, info=run.info | {"summary": summarise(jobs, run.slots)})
    refused = next(tile for tile in run_tiles(changed) if tile[0] == "refused")
    assert refused[1:] == ("7", "7 for price")


@pytest.mark.parametrize(("times", "beyond"), [(2, 0), (50, 1)])
def test_the_longest_jobs_are_completed_or_reported_as_beyond(times: int, beyond: int) -> None:
    run = simulated_run(0.0, 40)
    [*spans] = pl.concat([run.jobs["jct"]] * 8)
    spans[spans.index(max(run.jobs["jct"].drop_nulls()))] *= times
    jobs = pl.concat([run.jobs] * 8).with_columns(pl.Series("jct", spans))
    changed = replace(run, jobs=jobs, info=run.info | {"summary": summarise(jobs, run.slots)})
    page = render_comparison([changed], [])
    [chart] = [
        one
        for one in page_data(page)
        if isinstance(one, dict) and one.get("y_label") == "share of jobs that arrived"
    ]
    summary = changed.summary
    shown = (summary["finished"] - beyond) / summary["arrived"]
    assert chart["series"][0]["values"][-1] == pytest.approx(shown, abs=1e-4)
    assert ("took longer than the axis shows" in page) == bool(beyond)


def test_a_long_idle_stretch_changes_no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster(2, 1)
    scenario = Scenario(
        cluster, [make_job(cluster, "early"), replace(make_job(cluster, "late"), arrival=400)]
    )
    dense = record_run(scenario, "flat-rate", FlatPricePolicy())
    monkeypatch.setattr(tables, "MAX_GAP_ROWS", 20)
    sparse = record_run(scenario, "flat-rate", FlatPricePolicy())
    assert len(sparse.slots) < 50
    assert len(dense.slots) > 400
    assert sparse.slot_count == dense.slot_count == len(dense.slots)
    at = comparison._slots([dense], 45)

    def sampled(run: RunData, column: str, *, mean: bool) -> Any:
        values = run.slots[column].to_numpy().astype(np.float64)
        values = values if mean else np.cumsum(values)
        return comparison._sample_column(run, values, at, mean=mean)

    for column, mean in (("running", True), ("used_gpu", True), ("utility", False)):
        result = sampled(sparse, column, mean=mean)
        np.testing.assert_allclose(result, sampled(dense, column, mean=mean))
        assert result[0] > 0
        assert result[-1] > 0
    moves = pl.DataFrame({"slot": [0, 401], "paid": [2.0, 3.0]})
    rows = sparse.slots["slot"].to_numpy()
    spread = sections._by_slot_row(moves, "paid", rows)
    assert spread[rows == 0].tolist() == [2.0]
    assert spread[rows == 401].tolist() == [3.0]
