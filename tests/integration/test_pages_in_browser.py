"""The pages in a real browser: complete, without errors or requests, for every input device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shadowprice.core.utility import Sigmoid
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.report import inline_assets
from shadowprice.results.report.comparison import render_comparison
from shadowprice.results.report.number_format import format_number
from shadowprice.results.report.page import render_report
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import Scenario, record_run
from shadowprice.simulator.source import ScenarioSource
from tests.support import axe
from tests.support.browsers import (
    BLANK,
    CHROMIUM,
    NAMELESS,
    OVERFLOWING,
    Visit,
    browser,
    numbers_of,
)
from tests.support.flat_rate import FlatPricePolicy
from tests.support.policies import RandomPolicy
from tests.support.report_pages import flat_run, planned_run, promised_run, seed_runs
from tests.support.workloads import make_cluster, make_job

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


__all__ = ["browser"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the pages are not looked at"),
]

HOSTILE = [
    '</script><script>window.hacked = 1</script><img src="x" onerror="window.hacked = 2">',
    "<!--<script>",
    "]]>--><svg onload=window.hacked=3>",
    "quote \" and ' and ` and ${window.hacked = 4} and {{7*7}}",
    "escape \x1b[31m, nul \x00, newline \n, override \u202egpj.exe",
    "long-" + "name-without-any-place-to-break" * 8,
    "__proto__",
    "constructor",
    "{b|style} #job=1 %20 %zz",
]


def hostile_run() -> RunData:
    cluster = make_cluster(3, 2)
    work = [
        make_job(cluster, name, arrival=index // 2, utility=Sigmoid(5.0 + index, 0.5, 2.0))
        for index, name in enumerate(HOSTILE)
    ]
    return record_run(Scenario(cluster, work), 'flat-rate <b title="x">', FlatPricePolicy(0.5))


MONEY = """
slot: 1h
servers:
  - {name: old, count: 4, capacity: {gpu/k80: 4}, cost: 3.60}
  - {name: new, count: 2, capacity: {gpu/v100: 8}, cost: 24.48}
"""
ON_TYPES = """
jobs:
  - {name: resnet-v100, chunks: 4, minibatches: 36000, worker: {gpu/v100: 1},
     throughput: {1: 5, 2: 9.5, 4: 18}, utility: {kind: deadline, value: 9, by: 6h}}
  - {name: resnet-k80, chunks: 4, minibatches: 36000, worker: {gpu/k80: 1},
     throughput: {1: 1, 2: 1.9, 4: 3.5}, utility: {kind: deadline, value: 9, by: 24h}}
"""


def money_page(folder: Path) -> str:
    """Return the page of a run on servers that cost something."""
    (folder / "money.yaml").write_text(MONEY)
    (folder / "types.yaml").write_text(ON_TYPES)
    scenario, _ = ScenarioSource(
        cluster=folder / "money.yaml", jobs=folder / "types.yaml"
    ).scenario(0)
    return render_report(
        record_run(scenario, "oasis", PolicyChoice("oasis").build(scenario.context()))
    )


def comparison() -> str:
    cluster = make_cluster(3, 2)
    work = [make_job(cluster, f"job-{index}", arrival=index) for index in range(6)]
    names = ("flat-rate", "a policy of a long name parameter=0.123456 another=value-of-it")
    runs = [
        record_run(Scenario(cluster, work, until=30), name, policy)
        for name, policy in zip(names, (FlatPricePolicy(), RandomPolicy(1)), strict=True)
    ]
    table = [("total utility", ["60", "<5"], frozenset({0}))]
    return render_comparison(runs, table, seed_runs().record())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "planned": render_report(planned_run()),
        "flat": render_report(flat_run(45)),
        "refused": render_report(record_run(*_refused())),
        "none": render_report(
            record_run(Scenario(make_cluster(2, 1), []), "flat-rate", FlatPricePolicy())
        ),
        "hostile": render_report(hostile_run()),
        "promised": render_report(promised_run()),
        "comparison": comparison(),
        "money": money_page(folder),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def _refused() -> tuple[Scenario, str, FlatPricePolicy]:
    cluster = make_cluster(3, 2)
    return (
        Scenario(cluster, [make_job(cluster, f"job-{index}") for index in range(8)]),
        "flat-rate",
        FlatPricePolicy(1e9),
    )


def pixels(chart: Locator) -> str:
    """Return what a chart shows now."""
    return str(chart.locator("canvas").first.evaluate("(canvas) => canvas.toDataURL()"))


def until_closed(page: Page) -> None:
    """Wait until the history is closed; the page's policy allows no compiled waiting function."""
    page.locator("dialog[open]").wait_for(state="hidden")
    for _ in range(200):
        if not page.evaluate("location.hash"):
            return
        page.wait_for_timeout(25)
    raise AssertionError(page.url)


def test_no_two_policies_have_the_same_line(browser: Browser, tmp_path: Path) -> None:
    cluster = make_cluster(3, 2)
    work = [make_job(cluster, f"job-{index}", arrival=index) for index in range(6)]
    runs = [
        record_run(Scenario(cluster, work), f"policy-{index}", FlatPricePolicy())
        for index in range(16)
    ]
    (tmp_path / "page.html").write_text(render_comparison(runs, []), encoding="utf-8")
    with Visit(browser) as visit:
        page = visit.open(tmp_path / "page.html")
        lines = page.locator("figure", has_text="Utility earned up to each slot")
        looks = lines.locator(".entry i").evaluate_all("(all) => all.map((one) => one.className)")
    assert len(set(looks)) == 16


@pytest.mark.parametrize("name", ["money", "comparison"])
@pytest.mark.parametrize("width", [1400, 390])
def test_a_picture_of_a_whole_page_has_every_chart(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    with Visit(browser, width) as visit:
        page = visit.open(pages[name], whole=False)
        charts = page.locator(".chart").count()
        assert charts > 9
        drawn = page.locator(".chart .canvas canvas")
        for _ in range(200):  # without scrolling, and the window holds two or three of them
            if drawn.count() == charts:
                break
            page.wait_for_timeout(25)
        assert drawn.count() == charts
        assert page.evaluate(BLANK) == 0
        assert not visit.faults
        if name == "money":
            tile = page.locator(".tile", has_text="cost of what jobs used")
            assert "65.34" in tile.inner_text()
            assert "the whole cluster: 1,394" in tile.inner_text()


@pytest.mark.parametrize(
    "name", ["planned", "flat", "refused", "none", "hostile", "promised", "comparison", "money"]
)
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_pages_render_without_errors(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: Any
) -> None:
    with Visit(browser, width, scheme) as visit:
        axe.prepare(visit.context)
        page = visit.open(pages[name])
        assert axe.objections(page, name) == []
        charts = page.locator(".chart .canvas canvas").count()
        assert charts == page.locator(".chart").count()
        assert charts >= (0 if name == "none" else 3)
        assert page.evaluate(BLANK) == 0
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate(NAMELESS) == []
        page.emulate_media(media="print")
        page.emulate_media(media="screen", color_scheme="dark" if scheme == "light" else "light")
        assert page.evaluate(BLANK) == 0
        page.emulate_media(media="screen", color_scheme=scheme)
        assert page.evaluate("window.hacked") is None
        assert visit.faults == []
        assert visit.requests == [pages[name].as_uri()]
        job = page.locator("table a, table button").first
        if job.count():
            job.click()
            if page.locator("dialog[open]").count():
                assert axe.objections(page, f"{name}, a history") == []


def test_content_security_policy_blocks_foreign_scripts_and_requests(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with Visit(browser) as visit:
        page = visit.open(pages["flat"])
        page.evaluate(
            "() => { const one = document.createElement('script');"
            "one.textContent = 'window.hacked = 1'; document.body.append(one); }"
        )
        assert page.evaluate("window.hacked") is None
        answer = page.evaluate("fetch('http://localhost:9/').then(() => 'sent', () => 'stopped')")
        assert answer == "stopped"
        assert any("Content Security Policy" in fault for fault in visit.faults)


def test_job_row_opens_the_job_history(browser: Browser, pages: dict[str, Path]) -> None:
    with Visit(browser) as visit:
        page = visit.open(pages["planned"])
        row = page.locator("#job-list tbody button.job").first
        name = row.inner_text()
        row.click()
        dialog = page.locator("dialog[open]")
        assert dialog.locator("h2").inner_text().startswith(name)
        assert page.url.endswith(f"#job={name}")
        assert dialog.locator("dt", has_text="arrived").count() == 1
        page.keyboard.press("Escape")
        until_closed(page)
        page.keyboard.press("Enter")  # the focus is back on the job
        assert page.locator("dialog[open] h2").inner_text().startswith(name)
        assert visit.faults == []


def test_job_history_draws_placements(browser: Browser, pages: dict[str, Path]) -> None:
    run = planned_run()
    with Visit(browser, 390) as visit:
        for row in run.jobs.iter_rows(named=True):
            page = visit.open(pages["planned"], f"#job={row['job']}")
            dialog = page.locator("dialog[open]")
            assert row["job"] in dialog.locator("h2").inner_text()
            mine = run.allocations.filter(run.allocations["job"] == row["job"])
            figures = dialog.locator("figure h3").all_inner_texts()
            hint = dialog.locator(".remark", has_text="shadowprice explain").count()
            assert hint == (row["outcome"] in {"refused", "dropped"})
            if not len(mine):
                continue
            assert figures[:2] == ["Placements", "Workers"]
            rows = numbers_of(dialog.locator(".numbers").first)
            servers = {run.server_names[at] for at in mine["server"]}
            assert servers <= {row[0] for row in rows} or len(rows) == 10
            assert page.evaluate(OVERFLOWING) == []
            page.goto("about:blank")
        assert visit.faults == []


def test_job_history_shows_first_and_last_promise(browser: Browser, pages: dict[str, Path]) -> None:
    given: dict[str, list[int]] = {}
    for record in promised_run().decisions(False):
        if record.get("promise") is not None:
            given.setdefault(record["job"], []).append(record["promise"])
    moved = next(name for name, slots in given.items() if len(slots) > 1)
    kept = next(name for name, slots in given.items() if len(slots) == 1)
    ends = [given[moved][0] + 1, given[moved][-1] + 1]
    with Visit(browser, 390) as visit:
        page = visit.open(pages["promised"], f"#job={moved}")
        chart = page.locator("dialog[open] figure .canvas").first
        label = chart.get_attribute("aria-label")
        assert label is not None
        assert f"first promise at slot {ends[0]};" in label
        assert f"last promise at slot {ends[1]}" in label
        page.goto("about:blank")
        page = visit.open(pages["promised"], f"#job={kept}")
        label = page.locator("dialog[open] figure .canvas").first.get_attribute("aria-label")
        assert label is not None
        assert label.count("promise") == 1
        assert visit.faults == []


def test_job_history_shows_prices_paid(browser: Browser, pages: dict[str, Path]) -> None:
    run = flat_run(45)
    paid = {r["job"]: r["cost"] for r in run.decisions(False) if r["outcome"] == "admitted"}
    name = next(iter(paid))
    with Visit(browser) as visit:
        page = visit.open(pages["flat"], f"#job={name}")
        box = page.locator("dialog[open] .table", has_text="for its plan")
        rows = [line.split("\t") for line in box.locator("tbody tr").all_inner_texts()]
        ran = run.jobs.row(run.jobs["job"].to_list().index(name), named=True)["worker_slots"]
        assert [row[1] for row in rows] == [
            format_number(paid[name]),
            format_number(paid[name] / ran),
        ]
        assert visit.faults == []


def test_hostile_names_are_escaped(browser: Browser, pages: dict[str, Path]) -> None:
    with Visit(browser) as visit:
        page = visit.open(pages["hostile"])
        shown = page.locator("#job-list tbody button.job")
        assert sorted(shown.all_text_contents()) == sorted(
            inline_assets.escape_invisible(name) for name in HOSTILE
        )
        for index in range(len(HOSTILE)):
            text = shown.nth(index).text_content()
            shown.nth(index).click()
            title = page.locator("dialog[open] h2").text_content()
            assert title is not None
            assert title.startswith(str(text))
            page.keyboard.press("Escape")
            until_closed(page)
        page.locator("#job-list .canvas").focus()
        for _ in range(12):
            page.keyboard.press("ArrowDown")
        assert page.evaluate("window.hacked") is None
        assert visit.faults == []


def test_charts_are_read_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    run = flat_run(45)
    with Visit(browser) as visit:
        page = visit.open(pages["flat"])
        queue = page.locator("#queue")
        queue.locator(".canvas").focus()
        for step in range(3):
            page.keyboard.press("ArrowRight")
            row = run.slots.row(step, named=True)
            announcement = page.locator("[aria-live=polite]").inner_text()
            assert f"slot {row['slot']} · " in announcement
            assert f"running {row['running']}, waiting {row['queue']}" in announcement
        running = queue.locator(".legend button", has_text="running")
        running.focus()
        page.keyboard.press("Space")
        assert running.get_attribute("aria-pressed") == "false"
        queue.locator(".canvas").focus()
        page.keyboard.press("Home")
        assert "running" not in page.locator("[aria-live=polite]").inner_text()
        heat = page.locator("#servers .canvas").first
        heat.focus()
        page.keyboard.press("ArrowRight")
        assert run.server_names[0] in page.locator("[aria-live=polite]").inner_text()
        assert visit.faults == []


def test_every_chart_has_a_data_table(browser: Browser, pages: dict[str, Path]) -> None:
    run = flat_run(45)
    with Visit(browser) as visit:
        page = visit.open(pages["flat"])
        rows = numbers_of(page.locator("#queue .numbers"))
        wanted = run.slots.select("slot", "running", "queue").head(len(rows)).rows()
        assert [tuple(int(cell) for cell in row) for row in rows] == wanted
        for box in page.locator(".numbers").all():
            assert numbers_of(box)
        assert visit.faults == []


def test_filters_sort_and_pages_of_the_jobs(browser: Browser, pages: dict[str, Path]) -> None:
    run = flat_run(45)
    with Visit(browser) as visit:
        page = visit.open(pages["flat"])
        jobs = page.locator("#job-list")
        assert jobs.locator("tbody tr").count() == 20
        assert "20 rows" in str(jobs.locator(".canvas").first.get_attribute("aria-label"))
        jobs.get_by_role("button", name="Next").click()
        assert jobs.locator("tbody tr td:first-child").first.inner_text() == run.jobs["job"][20]
        jobs.get_by_role("columnheader", name="value").locator("button").click()
        jobs.get_by_role("columnheader", name="value").locator("button").click()
        best = run.jobs.sort("value", descending=True)["job"][0]
        assert jobs.locator("tbody tr td:first-child").first.inner_text() == best
        assert (
            jobs.get_by_role("columnheader", name="value").get_attribute("aria-sort")
            == "descending"
        )
        jobs.get_by_role("searchbox").fill("job-44")
        assert jobs.locator("tbody tr").count() == 1
        assert "1 rows" in str(jobs.locator(".canvas").first.get_attribute("aria-label"))
        counts = dict(run.jobs["outcome"].value_counts().iter_rows())
        for key, label in (("finished", "finished"), ("refused", "refused")):
            if key in counts:
                jobs.locator(".chips button", has_text=label).click()
                assert f"{counts[key]} row" in jobs.locator(".count").inner_text()
        assert visit.faults == []


def test_a_server_has_a_timeline(browser: Browser, pages: dict[str, Path]) -> None:
    run = planned_run()
    with Visit(browser) as visit:
        page = visit.open(pages["planned"])
        for server, name in enumerate(run.server_names):
            page.locator("#server-choice").select_option(str(server))
            timeline = page.locator("#server-timeline")
            assert timeline.locator("figure h3").first.inner_text() == f"Jobs on {name}"
            mine = run.allocations.filter(run.allocations["server"] == server)
            if not len(mine):
                continue
            rows = numbers_of(timeline.locator(".numbers").first)
            jobs = set(mine["job"])
            shown = {row[0] for row in rows}
            assert shown <= jobs
            assert shown == jobs or len(rows) == 10
        page.locator("#servers .canvas").first.focus()
        for key in ("ArrowRight", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        assert timeline.locator("figure h3").first.inner_text() == f"Jobs on {run.server_names[1]}"
        assert visit.faults == []


def test_charts_are_drawn_lazily(browser: Browser, pages: dict[str, Path]) -> None:
    with Visit(browser) as visit:
        visit.page.add_init_script("window.requestIdleCallback = () => 0")  # never idle
        page = visit.open(pages["flat"], whole=False)
        assert page.locator("#outcomes canvas").count() == 1
        assert page.locator("#lateness canvas").count() == 0
        page.locator("#lateness").scroll_into_view_if_needed()
        page.locator("#lateness canvas").wait_for()
        page.locator("#prices .canvas").focus()
        page.keyboard.press("ArrowRight")
        assert "slot" in page.locator("[aria-live=polite]").inner_text()
        assert visit.faults == []


def test_unknown_job_history_is_reported(browser: Browser, pages: dict[str, Path]) -> None:
    with Visit(browser) as visit:
        page = visit.open(pages["flat"], "#job=%E0%A4%A<b>")
        assert "This page has no history of" in page.get_by_role("alert").inner_text()
        assert page.locator("dialog[open]").count() == 0
        page.evaluate("location.hash = '#job=job-3'")
        page.locator("dialog[open] h2", has_text="job-3").wait_for()
        assert page.get_by_role("alert").count() == 0
        assert visit.faults == []


def test_axes_show_times_or_slots_and_zoom_together(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with Visit(browser) as visit:
        page = visit.open(pages["flat"])
        queue, other = page.locator("#queue"), page.locator("#utilisation")
        whole, whole_other = pixels(queue), pixels(other)
        page.get_by_role("button", name="slots", exact=True).click()
        assert pixels(queue) != whole
        page.get_by_role("button", name="time", exact=True).click()
        assert pixels(queue) == whole
        queue.get_by_role("button", name="Zoom in").click()
        assert pixels(queue) != whole
        assert pixels(other) != whole_other
        other.get_by_role("button", name="Show all").click()
        assert pixels(queue) == whole
        assert pixels(other) == whole_other
        assert visit.faults == []


def test_number_formats_agree_in_python_and_javascript(browser: Browser) -> None:
    values = [0.0, 1e-13, 5e-9, 1.25e-5, 0.0123456, 0.5, 3.14159, 12.0, 99.994, 100.4, 1234567.8]
    values += [1e15, 2.5e17, -3.5, -0.04]
    with Visit(browser) as visit:
        visit.page.add_script_tag(content=inline_assets.asset("format.mjs").replace("export ", ""))
        formatted = visit.page.evaluate("(values) => values.map(number)", values)
        assert formatted == [format_number(value) for value in values]
        spans = visit.page.evaluate("[0, 90, 5400, 86400, 190800, 0.25].map((s) => span(s))")
        assert spans == ["0", "1 min 30 s", "1 h 30 min", "1 d", "2 d 5 h", "250 ms"]
        # No part reaches the larger unit, and the rounded span is shown.
        near = [89 * 86400 + 86000, 86_399.9, 3_599.7, 7_199.9, 59.9996, 86_400 + 59, -86_399.9]
        spans = visit.page.evaluate("(values) => values.map((s) => span(s))", near)
        assert spans == ["90 d", "1 d", "1 h", "2 h", "1 min", "1 d 1 min", "-1 d"]
        single = visit.page.evaluate("(values) => values.map((s) => span(s, 1))", near[:3])
        assert single == ["90 d", "1 d", "1 h"]


SERVED = """<!doctype html><html><head><style>{style}</style></head><body><div id="host"></div>
<script src="echarts.min.js"></script><script type="module">
import {{ Chart, Page }} from "./charts.mjs";
import {{ Clock }} from "./format.mjs";
const first = {first};
const page = new Page(new Clock(60, 1504756737));
window.chart = new Chart(document.getElementById("host"), first, page);
document.documentElement.dataset.ready = "true";
</script></body></html>"""


def served(visit: Visit, first: dict[str, Any]) -> Page:
    """Open a page of a service that serves the modules as they are, with one chart."""
    page = visit.page

    def answer(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        if name:
            route.fulfill(body=inline_assets.asset(name), content_type="text/javascript")
        else:
            body = SERVED.format(style=inline_assets.asset("page.css"), first=json.dumps(first))
            route.fulfill(body=body, content_type="text/html")

    page.route("http://dashboard.test/**", answer)
    page.goto("http://dashboard.test/")
    page.wait_for_selector("html[data-ready]")
    return page


LEVELS = """() => {
  const canvas = chart.canvas.querySelector("canvas"), copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext("2d", {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  const top = (slot) => {
    const at = chart.page.clock.position(slot);
    const x = Math.round(chart.drawing.convertToPixel({xAxisIndex: 0}, at));
    const {data} = context.getImageData(x, 0, 1, copy.height);
    for (let y = 0; y < copy.height; y += 1) {
      if (data[4 * y + 2] > 150 && data[4 * y] < 90) return y;
    }
    return null;
  };
  return Array.from({length: 16}, (_, at) => [top(at + 2.2), top(at + 2.8)]);
}"""


def test_small_steps_are_drawn_as_steps(browser: Browser) -> None:
    """Below two pixels they were drawn as a slope."""
    steps = {
        "kind": "slotLines",
        "slots": True,
        "steps": True,
        "x": {"first": 0, "step": 1, "count": 20},
        "end": 20,
        "x_label": "slot",
        "y_label": "jobs",
        "y_high": 130,
        "series": [{"name": "running", "colour": 0, "values": list(range(20))}],
    }
    with Visit(browser) as visit:
        levels = served(visit, steps).evaluate(LEVELS)
        assert all(first == last for first, last in levels)
        assert len({first for first, _ in levels}) > 12


MIDDLES = """() => Object.fromEntries(chart.drawing.getZr().storage.getDisplayList(true)
  .filter((item) => item.style?.text)
  .map((item) => {
    const box = item.getBoundingRect().clone();
    if (item.transform) box.applyTransform(item.transform);
    return [item.style.text, box.y + box.height / 2];
  }))"""


def test_the_name_of_an_axis_and_those_of_marks_do_not_collide(browser: Browser) -> None:
    progress = {
        "kind": "slotLines",
        "slots": True,
        "x": {"first": 0, "step": 1, "count": 20},
        "end": 20,
        "x_label": "slot",
        "y_label": "mini-batches",
        "series": [{"name": "done", "colour": 0, "values": list(range(20))}],
        "marks": [{"x": 1, "name": "now"}, {"x": 19, "name": "promised"}],
    }
    with Visit(browser) as visit:
        middles = served(visit, progress).evaluate(MIDDLES)
        assert middles["mini-batches"] >= 6  # half of a line
        for mark in ("now", "promised"):
            assert middles[mark] - middles["mini-batches"] >= 12


def test_a_service_can_serve_the_modules_and_send_news(browser: Browser) -> None:
    """The same files, unbundled, as the live dashboard will use them."""
    first: dict[str, Any] = {
        "kind": "slotLines",
        "slots": True,
        "steps": True,
        "x": [0, 1],
        "x_label": "slot",
        "y_label": "jobs",
        "series": [{"name": "running", "colour": 0, "values": [1, 2]}],
    }
    with Visit(browser) as visit:
        page = served(visit, first)
        assert len(numbers_of(page.locator(".numbers"))) == 2
        news = json.loads(json.dumps(first))
        news["x"].append(2)
        news["series"][0]["values"].append(7)
        before = pixels(page.locator("#host"))
        page.evaluate("(news) => window.chart.update(news)", news)
        assert page.locator("tbody tr").count() == 3
        assert pixels(page.locator("#host")) != before
        assert "at the end 7" in str(page.locator(".canvas").get_attribute("aria-label"))
        assert page.evaluate("chart.page.clock.time(2)") == "2017-09-07 04:00"
        assert visit.faults == []
