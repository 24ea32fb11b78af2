"""The page of a run: whole, self-contained, and true to its tables."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shadowprice.core.events import JobCancelled, ServerLost
from shadowprice.core.utility import Constant, Sigmoid
from shadowprice.results.files import Run
from shadowprice.results.report import charts, sections
from shadowprice.results.report.comparison import render_comparison
from shadowprice.results.report.heat import FAINTEST, LOAD, heat_map, opacity
from shadowprice.results.report.page import render_report
from shadowprice.results.report.scales import Scale, number, span, tick_text, ticks
from shadowprice.results.report.tables import Column, data_table
from shadowprice.simulator.scenario import Scenario, record_run
from tests.planners import Wanderer
from tests.priced import FlatRate
from tests.workloads import cluster, job

VOID = {"meta", "input", "br", "image", "path", "line", "rect", "circle"}


class Balanced(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v or "" for name, v in attrs if name in {"src", "href", "xlink:href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v or "" for name, v in attrs if name in {"src", "href", "xlink:href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def check_page(text: str) -> Balanced:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    for target in parser.loads:
        assert target.startswith(("#", "data:image/png")) or re.fullmatch(
            r"[a-z-]+/report\.html", target
        )
    # Nothing is fetched: no address but the name of the SVG namespace, no import, no url().
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text
    assert "NaN" not in text.replace("isNaN", "")
    return parser


def run_of(price: float = 0.5, jobs: int = 8, **changes: object) -> Run:
    on = cluster(3, 2)
    work = [
        job(on, f"job-{at}", arrival=at // 2, utility=Sigmoid(5.0 + at, 0.5, 2.0), **changes)
        for at in range(jobs)
    ]
    return record_run(
        Scenario(on, work, incidents=[ServerLost(2, 0), JobCancelled(9, "job-7")][: jobs // 4]),
        "flat-rate",
        FlatRate(price),
    )


def test_the_page_is_whole_and_needs_no_network() -> None:
    run = run_of()
    text = render_report(run)
    check_page(text)
    for heading in ("Utility over time", "Servers", "Lateness", "Refusals", "Decisions", "Prices"):
        assert f"<h2>{heading}</h2>" in text
    assert len(text) < 6e6
    assert render_report(run) == text


def test_refusals_tell_value_price_bottleneck_and_change() -> None:
    text = render_report(run_of(price=1e3))
    refusals = text.partition('<section id="refusals">')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", refusals)[1:]
    assert len(rows) == 8
    assert "gpu of worker servers in slots" in rows[0]
    assert "times as much" in rows[0]
    assert "<td class=num>8,000</td>" in rows[0]  # 8 worker-slots at a price of 1,000
    assert "No job was refused." in render_report(run_of(price=0.0))


@pytest.mark.parametrize("jobs", [0, 1, 4])
def test_tiny_runs_have_a_page(jobs: int) -> None:
    check_page(render_report(run_of(jobs=jobs)))
    check_page(render_report(run_of(jobs=jobs, price=1e9)))


def test_names_cannot_break_out_of_the_page() -> None:
    on = cluster(1, 1)
    name = '</script><script>alert("x")</script><b>&amp;'
    run = record_run(
        Scenario(on, [job(on, name, utility=Constant(1.0)), job(on, "b", utility=Constant(0.0))]),
        "flat-rate",
        FlatRate(0.01),
    )
    text = render_report(run)
    check_page(text)
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>")


def test_a_partial_run_says_so() -> None:
    run = run_of()
    run.info.update(partial=True, interrupted_in_slot=3)
    assert "Partial result: the run was interrupted (flat-rate in slot 3)" in render_report(run)


def test_comparison_shows_every_policy() -> None:
    on = cluster(3, 2)
    work = [job(on, f"job-{at}", arrival=at) for at in range(6)]
    runs = [
        record_run(Scenario(on, work, until=30), name, policy)
        for name, policy in (("flat-rate", FlatRate()), ("wanderer", Wanderer(1)))
    ]
    text = render_comparison(runs, [("total utility", ["60", "<5"], frozenset({0}))])
    check_page(text)
    assert '<td class="num best">60</td><td class="num">&lt;5</td>' in text
    assert text.count('href="wanderer/report.html"') == 1


def test_a_section_is_a_function() -> None:
    @sections.section("Extra", 15)
    def extra(run: Run) -> str | None:
        return f"<p>{run.policy} has {len(run.jobs)} jobs</p>"

    try:
        assert "<h2>Extra</h2><p>flat-rate has 8 jobs</p>" in render_report(run_of())
        with pytest.raises(ValueError, match="two sections are called 'Extra'"):
            sections.section("Extra", 16)(lambda run: None)
    finally:
        del sections._sections["Extra"]


# ---------------------------------------------------------------- heat maps


def unpng(text: str) -> tuple[NDArray[np.uint8], bytes]:
    """Decode the palette PNG of a heat map: levels and opacities."""
    encoded = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", text)[0]
    data, at, chunks = base64.b64decode(encoded), 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    wide, high = struct.unpack(">II", chunks[b"IHDR"][:8])
    pixels = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(high, wide + 1)
    assert (pixels[:, 0] == 0).all()
    return pixels[:, 1:], chunks[b"tRNS"]


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 30), st.booleans())
def test_heat_maps_carry_their_values(seed: int, rows: int, bins: int, log: bool) -> None:
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.01, 1.0, (rows, bins))
    values[rng.random((rows, bins)) < 0.2] = 0.0
    text = heat_map(
        values,
        first_slot=5,
        slots_per_bin=2,
        slots=2 * bins,
        names=[f"gpu-{at}" for at in range(rows)],
        servers_per_row=1,
        ramp=LOAD,
        low=0.01 if log else 0.0,
        high=1.0,
        log=log,
        what="share",
    )
    levels, opacities = unpng(text)
    seen = np.array([opacities[level] for level in levels.ravel()]).reshape(levels.shape)
    # As the page's script reads a value back from the opacity.
    back = np.where(seen > 0, np.round((seen - FAINTEST) / (255 - FAINTEST) * 255) / 255, 0.0)
    read = np.where(back > 0, 0.01 * 100.0**back, 0.0) if log else back
    assert ((read > 0) == (values > 0)).all()
    assert np.abs(np.log(read[read > 0] / values[read > 0])).max(initial=0) < 0.04 or not log
    assert log or np.abs(read - values).max() < 0.006


def test_opacity_tells_all_levels_apart() -> None:
    seen = [opacity(level) for level in range(256)]
    assert seen[0] == 0
    assert seen[255] == 255
    inverted = [round((o - FAINTEST) / (255 - FAINTEST) * 255) if o else 0 for o in seen]
    assert max(abs(a - b) for a, b in enumerate(inverted)) <= 1


# ---------------------------------------------------------------- charts, scales, tables


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.floats(-1e9, 1e9, allow_nan=False),
    st.floats(1e-6, 1e9, allow_nan=False),
    st.integers(2, 10),
)
def test_ticks_are_round_and_inside(low: float, width: float, most: int) -> None:
    high = low + width
    if high <= low + abs(low) * 1e-9:
        return
    marks = ticks(low, high, most)
    assert len(marks) <= most + 1
    slack = width * 1e-6 + abs(low) * 1e-9
    assert all(low - slack <= mark <= high + slack for mark in marks)
    assert ticks(3.0, 3.0) == [3.0]


def test_numbers_as_a_reader_wants_them() -> None:
    told = [number(v) for v in (0, 12, 1234567.8, 3.14159, 0.0123456, 1e-300, 0.5, float("inf"))]
    assert told == ["0", "12", "1,234,568", "3.14", "0.0123", "0", "0.5", "∞"]
    assert [tick_text(v) for v in (0, 1500, 20_000, 3e6, 0.25)] == [
        "0",
        "1,500",
        "20k",
        "3M",
        "0.25",
    ]
    assert [span(s) for s in (1200, 0.000042, 90000, 3600, 0.25)] == [
        "20 min",
        "42 µs",
        "1.04 d",
        "1 h",
        "250 ms",
    ]
    assert Scale(0, 10, 100, 200)(5) == 150


def test_thinning_keeps_sums_and_gaps() -> None:
    values = np.arange(10.0)
    positions, means = charts.thin(values, 4)
    assert positions.tolist() == [0, 3, 6, 9]
    assert means.tolist() == [1.0, 4.0, 7.0, 9.0]
    positions, lasts = charts.thin(values, 4, last=True)
    assert positions.tolist() == [2, 5, 8, 9]
    assert lasts.tolist() == [2.0, 5.0, 8.0, 9.0]
    _, gaps = charts.thin(np.array([np.nan, np.nan, 1.0, np.nan]), 2)
    assert np.isnan(gaps[0])
    assert gaps[1] == 1.0


def test_a_line_carries_its_numbers() -> None:
    text = charts.line_chart(
        np.array([0.0, 1.0, 2.0]),
        [charts.Series("a<b", np.array([1.0, np.nan, 3.5]), 2)],
        x_label="slot",
        y_label="jobs",
        steps=True,
    )
    data = json.loads(unescape(re.findall(r'data-chart="([^"]+)"', text)[0]))
    assert data["series"] == [{"name": "a<b", "c": 2, "values": [1, None, 3.5]}]
    assert data["end"] == 3
    path = re.findall(r'class="line s2" d="([^"]+)"', text)[0]
    assert path.count("M") == 2  # a gap where there is no number


def test_tables_sort_numbers_and_say_what_is_left_out() -> None:
    columns = [Column("job"), Column("value", numeric=True)]
    rows = [[f"<{at}>", float(at)] for at in range(5000)]
    text = data_table(columns, rows, total=9000, remark="those worth most.")
    kept = json.loads(re.findall(r"json\">(.*?)</script>", text)[0])
    assert len(kept) == 4000
    assert kept[3] == ["<3>", 3.0]
    assert "4,000 of 9,000 are shown: those worth most." in text
    assert text.count("<tr>") == 26
    assert "&lt;3&gt;" in text
    assert "live" not in data_table(columns, rows[:3])
