"""The dashboard in a real browser, on a service that really runs jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import httpx
import pytest
import yaml

from shadowprice.cli.plain_job import PlainJob
from shadowprice.core.amounts import parse_duration
from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.registry import create_executor
from shadowprice.results.report import inline_assets
from shadowprice.service.state import store_queries
from tests.contract.harness import LocalHarness
from tests.support import axe
from tests.support.browsers import BLANK, NAMELESS, OVERFLOWING, Visit, browser, numbers_of
from tests.support.dashboard import HOSTILE, VIEWS, open_view, operator_token, sign_in
from tests.support.services import RunningService, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the dashboard is not looked at"),
]

CLUSTER: Mapping[str, Any] = {
    "slot": "1s",
    "horizon": 300,
    "tenants": [
        {"name": "red", "share": {"gpu": 4}, "budget": {"points": 5_000, "period": "7d"}},
        {"name": "blue <b>"},
    ],
    "servers": [{"name": "g", "count": 3, "capacity": {"gpu": 4, "cpu": 16}}],
}


TRAIN = """
import json, os, sys, time, urllib.request
total, pause = int(sys.argv[1]), float(sys.argv[2])
url, token = os.environ["SHADOWPRICE_PROGRESS_URL"], os.environ["SHADOWPRICE_PROGRESS_TOKEN"]
for step in range(1, total + 1):
    time.sleep(pause)
    print(f"\\x1b[1mstep {step}\\x1b[0m of {total} <i>&amp;", flush=True)
    body = json.dumps({"minibatches": step, "metrics": {"loss": 1 / step}}).encode()
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, body, head))
"""


FAIL = "[ $SHADOWPRICE_RANK = 0 ] && exec sleep 600; echo out of memory; exit 3"
"""The second of two workers fails with an error message."""

LINGER = [sys.executable, "-I", "-c", TRAIN + "time.sleep(6)", "4", "0.4"]
"""A job that doesn't end with its last step."""


def training(name: str, steps: int, pause: float = 0.4, **more: Any) -> dict[str, Any]:
    """A job that really trains a small model."""
    return {
        "name": name,
        "tenant": "red",
        "minibatches": steps,
        "minibatch_time": f"{pause}s",
        "worker": {"gpu": 1, "cpu": 1},
        "utility": {"kind": "deadline", "value": 50, "by": "20min"},
        "run": {"command": [sys.executable, "-I", "-c", TRAIN, str(steps), str(pause)]},
        **more,
    }


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("dashboard")
    harness = LocalHarness(folder / "executor", {"cgroup": "off"})
    executor = create_executor(
        "local", ExecutorOptions(str(harness.path), settings=harness.settings)
    )
    try:
        with run_service(folder, cluster=CLUSTER, policy="rolling", executor=executor) as found:
            for job in (
                training("trains", 2_000, 0.25, family="digits <i>"),
                training("others", 2_000, 1.0, tenant="blue <b>"),
                training("short", 4),
                training("lingers", 4, run={"command": LINGER}),
                training("fails", 2, run={"command": FAIL}, chunks=2, workers={"min": 2, "max": 2}),
                training("too big", 5, worker={"gpu": 64}),
                *(training(name, 3, 0.2, worker={"gpu": 3}) for name in HOSTILE),
            ):
                assert found.client.post("/v1/jobs", json=job).status_code == 200
            states = {"trains": "running", "short": "finished", "lingers": "finished"}
            for name, state in {**states, "fails": "failed"}.items():
                wait_until(lambda name=name, state=state: state_of(found, name) == state)
            yield found
    finally:
        # The browser's driver has a loop of its own in this thread.
        ending = threading.Thread(target=harness.end)
        ending.start()
        ending.join(WAIT_LIMIT_SECONDS)
        assert not ending.is_alive(), harness.leftovers()


def state_of(live: RunningService, name: str) -> str:
    return str(live.client.get(f"/v1/jobs/{name}").json()["state"])


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_every_view_renders_without_errors(
    browser: Browser, live: RunningService, width: int, scheme: str
) -> None:
    with Visit(browser, width, scheme) as visit:
        axe.prepare(visit.context)
        visit.page.goto(live.address)
        visit.page.get_by_label("Token").wait_for()
        assert axe.objections(visit.page, "sign in") == []
        page = sign_in(visit, live.address, operator_token(live))
        for view in VIEWS:
            open_view(page, view)
            assert axe.objections(page, view) == []
            assert page.evaluate(OVERFLOWING) == [], view
            assert page.evaluate(NAMELESS) == [], view
            assert page.evaluate(BLANK) == 0, view
            assert page.locator("h1").count() == 1
            assert page.locator("main").count() == page.locator("header.top nav").count() == 1
        assert page.evaluate("window.hacked") is None
        assert visit.faults == []
        assert {url.split("/")[2] for url in visit.requests} == {live.address.split("/")[2]}
        assert not any(operator_token(live) in url for url in visit.requests)
        assert page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 1]
        assert operator_token(live) not in page.content()
        assert _dialogs(page) == []


def _dialogs(page: Page) -> list[str]:
    """Check every kind of dialog: a warning, one with fields, one with an invalid field."""
    open_view(page, "#/")
    page.get_by_role("button", name="Drain g-0").click()
    page.locator("dialog[open]").wait_for()
    found = axe.objections(page, "drain")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Add servers").click()
    page.get_by_label("Name", exact=True).fill("g-0")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator("dialog .note.bad").wait_for()
    found += axe.objections(page, "add servers")
    page.keyboard.press("Escape")
    return found


def test_theme_selection_is_stored(browser: Browser, live: RunningService) -> None:
    with Visit(browser, scheme="light") as visit:
        page = sign_in(visit, live.address, operator_token(live))
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        before = page.locator("figure canvas").first.evaluate("(one) => one.toDataURL()")
        page.get_by_role("button", name=re.compile("^Theme")).click()
        page.get_by_role("button", name="Theme: light").click()
        dark = page.evaluate(colour)
        assert dark != light
        after = page.locator("figure canvas").first.evaluate("(one) => one.toDataURL()")
        assert after != before
        page.reload()
        page.locator("header.top").wait_for()
        assert page.evaluate(colour) == dark
        assert visit.faults == []


def test_sign_in_requires_a_valid_token(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = visit.page
        page.goto(live.address)
        page.get_by_label("Token").fill("sp_wrong")
        page.get_by_role("button", name="Sign in").click()
        assert "is unknown or revoked" in page.get_by_role("alert").inner_text()
        assert page.evaluate("sessionStorage.length") == 0
        page.get_by_label("Token").fill("no token \u2603")
        page.keyboard.press("Enter")
        page.get_by_text("letters, digits").wait_for()
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()
        assert page.evaluate("sessionStorage.length") == 0


def test_hostile_names_are_escaped(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue/all")
        shown = page.locator("td .jobname").all_text_contents()
        assert {inline_assets.escape_invisible(name) for name in HOSTILE} <= set(shown)
        for name in HOSTILE:
            page.evaluate("location.hash = '#/queue/all'")
            link = page.locator("td .jobname").get_by_text(
                inline_assets.escape_invisible(name), exact=True
            )
            link.click()
            page.locator("h1").get_by_text(
                inline_assets.escape_invisible(name), exact=True
            ).wait_for()
            page.locator(".history-list li").first.wait_for()
            assert page.locator(".history-list .what").last.inner_text() == "submitted"
        assert page.evaluate("window.hacked") is None
        assert visit.faults == []


def test_events_update_the_page(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        loaded = page.evaluate("performance.timeOrigin")
        live.client.post("/v1/jobs", json=training("fresh", 8, 0.3))
        row = page.locator("tr", has=page.get_by_role("link", name="fresh", exact=True))
        row.get_by_text("running").wait_for()
        assert row.locator("time").first.get_attribute("datetime")
        page.get_by_role("button", name="Finished").click()
        done = page.locator("tr", has=page.get_by_role("link", name="fresh", exact=True))
        done.get_by_text("kept").wait_for(timeout=60_000)
        assert page.evaluate("performance.timeOrigin") == loaded
        assert visit.faults == []


@pytest.mark.parametrize("hours", [-2, 2])
def test_browser_clock_does_not_affect_displayed_times(
    browser: Browser, live: RunningService, hours: int
) -> None:
    with Visit(browser) as visit:
        visit.page.clock.set_system_time(datetime.now(UTC) + timedelta(hours=hours))
        page = sign_in(visit, live.address, operator_token(live), "#/job/trains")
        submitted = page.locator("main [data-moment]").first
        assert re.fullmatch(r"(\d+ min )?\d+ (s|min) ago|now", submitted.inner_text())
        page.locator("header.top").get_by_text(re.compile("0:0[01] left")).wait_for()
        assert visit.faults == []


def test_job_page_shows_the_job_history(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/job/short")
        body = live.client.get("/v1/jobs/short/progress").json()["points"]
        assert body
        box = page.locator("figure", has=page.get_by_role("heading", name="loss"))
        rows = numbers_of(box.locator(".numbers"))
        assert [float(row[0]) for row in rows] == [point["minibatches"] for point in body]
        assert float(rows[-1][1]) == pytest.approx(body[-1]["metrics"]["loss"], rel=0.01)
        log = page.locator("pre.log").first
        log.get_by_text("step 4 of 4 <i>&amp;").wait_for()
        assert "\x1b" not in log.inner_text()
        history = page.locator(".history-list .badge").all_inner_texts()
        events = live.client.get("/v1/jobs/short/explain").json()["events"]
        assert history == [entry["kind"] for entry in reversed(events)]
        generations = page.get_by_role("region", name="Generations").locator("tbody tr")
        assert generations.count() == len(
            live.client.get("/v1/jobs/short/generations").json()["generations"]
        )
        where = page.locator("figure", has=page.get_by_role("heading", name="Where it ran"))
        assert {row[0] for row in numbers_of(where.locator(".numbers"))} <= {"g-0", "g-1", "g-2"}
        page.get_by_text("What was submitted").click()
        assert '"minibatches": 4' in page.locator("details.spec pre").inner_text()
        open_view(page, "#/job/trains")  # it has the curve of a family, and says so
        tiles = page.locator(".tiles").first.inner_text()
        assert "estimated" in tiles
        assert "from the family digits <i>" in tiles
        open_view(page, "#/job/fails")
        assert "Speed" not in page.locator(".tiles").first.inner_text()  # as it was stated
        assert "Failed: worker-1 exited 3" in page.get_by_role("alert").inner_text()
        page.get_by_role("log").filter(
            has_text="out of memory"
        ).wait_for()  # of the worker that failed
        assert page.get_by_label("Process", exact=True).input_value() == "worker-1"
        assert visit.faults == []


def test_a_refused_job_is_not_said_to_run_later(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/job/too%20big")
        page.get_by_role("region", name="Generations").get_by_text("It never ran.").wait_for()
        assert "has not run yet" not in page.locator("main").inner_text()
        assert visit.faults == []


def test_a_metric_of_one_value_has_no_chart(browser: Browser, live: RunningService) -> None:
    steady = TRAIN.replace('"loss": 1 / step', '"loss": 1 / step, "start_seconds": 0.3519999957')
    command = [sys.executable, "-I", "-c", steady, "4", "0.2"]
    live.client.post("/v1/jobs", json=training("steady", 4, 0.2, run={"command": command}))
    wait_until(lambda: state_of(live, "steady") == "finished")
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/job/steady")
        page.locator("figure", has=page.get_by_role("heading", name="loss")).wait_for()
        tile = page.locator(".tile", has_text="start_seconds")
        assert tile.locator("b").inner_text() == "0.352"
        assert page.get_by_role("heading", name="start_seconds").count() == 0
        assert visit.faults == []


def test_next_slot_of_an_idle_service_is_in_the_future(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live))
        page.evaluate(
            """async () => {
            const {when, tickMoments} = await import("./assets/parts.mjs");
            const past = new Date(Date.now() - 8000).toISOString();
            const made = document.createElement("div");
            made.id = "past";
            made.append(when(past, {every: 3600}), when(past));
            const small = document.createElement("small");
            small.dataset.moment = past;
            small.dataset.every = 3600;
            made.append(small);
            document.body.append(made);
            tickMoments(made);
            }"""
        )
        assert re.fullmatch(r"in (59 min|1 h)", page.locator("#past > small").inner_text())
        assert re.fullmatch(r"\d+ s ago", page.locator("#past .when small").last.inner_text())


def test_search_matches_part_of_the_job_name(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        page.get_by_label("Find jobs by a part of their name").fill("HOR")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="short", exact=True).wait_for()
        assert page.locator("tbody tr").count() == 1
        page.get_by_label("Find jobs by a part of their name").fill("<script>")
        page.keyboard.press("Enter")
        page.locator("tr", has_text="<script>").wait_for()
        assert page.locator("tbody tr").count() == 1
        page.get_by_label("Find jobs by a part of their name").fill("no such name")
        page.keyboard.press("Enter")
        page.get_by_text("No job in this list has this text in its name.").wait_for()
        assert page.evaluate("window.hacked") is None
        assert visit.faults == []


def test_submit_form_submits_a_command(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        page.get_by_role("link", name="Submit a job").click()
        submit = page.get_by_role("button", name="Submit", exact=True)
        submit.click()
        command = page.get_by_label("Command", exact=True)
        assert command.get_attribute("aria-invalid") == "true"
        command.fill("echo <b>; true")
        page.get_by_label("Directory").fill("relative")
        page.get_by_label("Expected run time").fill("soon")
        page.get_by_label("Memory").fill("much <i>")
        submit.click()
        # Problems that the service finds stand at their fields.
        for name in ("Directory", "Expected run time", "Memory"):
            page.locator(".field", has=page.get_by_label(name)).locator(".fault").wait_for()
        assert command.get_attribute("aria-invalid") is None
        assert page.locator(".fault i").count() == 0
        page.get_by_label("Directory").fill("")
        page.get_by_label("Expected run time").fill("30s")
        page.get_by_label("Memory").fill("")
        page.get_by_label("Environment").fill("SEED=1\nTEXT=a=b")
        page.get_by_label("Tenant").select_option("red")
        page.get_by_label("Name", exact=True).fill("from the page")
        submit.click()
        page.locator("h1").get_by_text("from the page").wait_for()
        spec = live.client.get("/v1/jobs/from%20the%20page").json()["spec"]
        assert spec["run"]["command"] == "echo <b>; true"
        assert set(spec["run"]["env"]) == {"SEED", "TEXT"}
        assert (spec["steps"], spec["minibatch_time"]) == (1, "30s")
        assert spec["worker"] == {"cpu": 1}
        assert spec["tenant"] == "red"
        assert page.evaluate("window.hacked") is None


def _fill_command(page: Page, **values: str) -> None:
    page.get_by_label("Command", exact=True).fill("true")
    for label, value in values.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(value)


def _fault_at(page: Page, label: str) -> str:
    fault = page.locator(".field", has=page.get_by_label(label, exact=True)).locator(".fault")
    fault.wait_for()
    return fault.inner_text().strip()


def test_resubmission_after_a_lost_response_starts_no_second_job(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/submit")
        names: list[str] = []

        def lose(route: Any) -> None:
            names.append(route.request.post_data_json["name"])
            if len(names) == 1:
                route.fetch()
                route.abort()
            else:
                route.continue_()

        page.route("**/v1/jobs", lose)
        page.get_by_label("Command", exact=True).fill("TOKEN='s3cret word' KEY=a true-once")
        submit = page.get_by_role("button", name="Submit", exact=True)
        submit.click()
        page.locator(".note.bad").wait_for()
        assert submit.evaluate("(button) => button === document.activeElement")
        submit.click()
        page.locator("h1").get_by_text("true-once-").wait_for()
        assert len(names) == 2
        assert len(set(names)) == 1
        assert re.fullmatch("true-once-[2-9a-z]{6}", names[0])
        listed = live.client.get("/v1/jobs", params={"search": "true-once"}).json()["jobs"]
        assert [job["name"] for job in listed] == names[:1]
        assert live.client.get(f"/v1/jobs/{names[0]}").json()["tenant"] is None


def test_name_conflict_is_shown_at_the_name_field(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, live.token("red"), "#/submit")
        _fill_command(page, Name="trains")
        page.get_by_role("button", name="Submit", exact=True).click()
        assert "job 'trains' was submitted with other content" in _fault_at(page, "Name")
        focused = page.get_by_label("Name", exact=True)
        assert focused.evaluate("(input) => input === document.activeElement")
        assert page.locator(".note.bad").count() == 0


def test_late_response_does_not_change_the_current_page(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/submit")
        held: list[Any] = []
        page.route("**/v1/jobs", lambda route: held.append(route))  # noqa: PLW0108  # a builtin has no attributes
        _fill_command(page, Name="answered late")
        page.get_by_role("button", name="Submit", exact=True).click()
        wait_until(lambda: page.wait_for_timeout(10) is None and held)
        open_view(page, "#/prices")
        held[0].continue_()
        page.get_by_text("Submitted answered late").wait_for(state="attached")
        assert page.url.endswith("#/prices")


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_deadline_is_in_the_browser_time_zone(
    browser: Browser, live: RunningService, zone: str
) -> None:
    with Visit(browser, zone=zone) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/submit")

        def sent(text: str) -> str:
            script = (
                "async (text) => (await import('./assets/view_submit.mjs')).absoluteMoment(text)"
            )
            return str(page.evaluate(script, text))

        def local(text: str) -> datetime:
            return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))

        year = datetime.now(UTC).year + 2
        for text in (
            "6h",
            "20 slots",
            "18:00Z",
            f"{year}-01-01T18:00+01:00",
            "25:00",
            f"{year}-02-30",
        ):
            assert sent(text) == text
        for text in (
            f"{year}-01-01 18:00",
            f"{year}-07-01T18:00:30",
            f"{year}-07-01",
            f"{year}0701",
        ):
            assert datetime.fromisoformat(sent(text)) == local(text)
        for text in ("00:00", "9:30", "18:00", "23:59:59"):
            before = datetime.now(UTC)
            moment = datetime.fromisoformat(sent(text))
            after = datetime.now(UTC)
            clock = time.fromisoformat(text.rjust(5, "0"))
            days = {
                (moment_now.astimezone(ZoneInfo(zone)) + timedelta(days=days)).date()
                for moment_now in (before, after)
                for days in (0, 1)
            }
            times = [datetime.combine(day, clock, ZoneInfo(zone)) for day in sorted(days)]
            expected = {
                next(time for time in times if time > now)
                for now in (before - timedelta(seconds=5), before, after + timedelta(seconds=5))
            }
            assert moment in expected
        _fill_command(page, Deadline=f"{year}-01-01 18:00", Name=f"by {zone}")
        page.get_by_role("button", name="Submit", exact=True).click()
        page.locator("h1").get_by_text("by ").wait_for()
        spec = live.client.get(f"/v1/jobs/{quote(f'by {zone}', safe='')}").json()["spec"]
        assert datetime.fromisoformat(spec["by"]) == local(f"{year}-01-01 18:00")


def test_work_and_environment_are_sent_as_the_command_line_does(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/submit")
        bodies: list[Any] = []

        def refuse(route: Any) -> None:
            bodies.append(route.request.post_data_json)
            route.fulfill(status=503, json={"detail": "not now", "code": "storage"})

        page.route("**/v1/jobs", refuse)
        submit = page.get_by_role("button", name="Submit", exact=True)

        def sent() -> Any:
            count = len(bodies)
            submit.click()
            wait_until(lambda: page.wait_for_timeout(10) is None and len(bodies) > count)
            submit.and_(page.locator(":enabled")).wait_for()
            return bodies[-1]

        for text, steps in [
            ("90m", 7), ("1w", 80_000), ("500us", 3), (".5h", 9), ("1e3s", 7), ("3 h", 1),
        ]:  # fmt: skip
            _fill_command(page, Expected_run_time=text, Steps=str(steps))
            record = PlainJob(["true"], time=text, steps=steps)._work()
            body = sent()
            assert body["steps"] == record["steps"]
            times = [parse_duration(each["minibatch_time"]).seconds for each in (body, record)]
            assert float(times[0]) == pytest.approx(float(times[1]))
        _fill_command(page, Expected_run_time="20min", Steps="")
        page.get_by_label("Environment").fill("A= two \n__proto__=x\nEMPTY=\nB=1=2 ")
        body = sent()
        assert (body["steps"], body["minibatch_time"]) == (1, "20min")
        variables = body["run"]["env"]
        assert variables == {"A": " two ", "__proto__": "x", "EMPTY": "", "B": "1=2 "}
        page.get_by_label("Environment").fill("A=1\nA=2")
        _fill_command(page, Expected_run_time="soon", Steps="many")
        submit.click()
        assert _fault_at(page, "Environment") == '"A" occurs twice'
        assert _fault_at(page, "Steps") == 'expected a number, got "many"'
        _fill_command(page, Steps="5")
        page.get_by_label("Environment").fill("")
        submit.click()
        assert _fault_at(page, "Expected run time").startswith('expected a duration, got "soon"')
        page.unroute("**/v1/jobs")
        _fill_command(page, Expected_run_time="1h", Steps="2.5")
        submit.click()
        assert _fault_at(page, "Steps")


def test_two_jobs_are_compared(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/job/trains")
        page.get_by_role("link", name="Compare").click()
        page.get_by_label("Second job").fill("short")
        page.get_by_role("button", name="Compare").click()
        for title in ("Progress", "Throughput", "loss"):
            figure = page.locator("figure", has=page.get_by_role("heading", name=title))
            figure.wait_for()
            assert figure.locator(".entry").count() == 2
        rows = numbers_of(
            page.locator("figure", has=page.get_by_role("heading", name="loss")).locator(".numbers")
        )
        points = live.client.get("/v1/jobs/short/progress").json()["points"]
        drawn = {float(row[0]): row[2] for row in rows}
        for point in points:
            assert float(drawn[point["minibatches"]]) == pytest.approx(
                point["metrics"]["loss"], rel=0.01
            )
        assert visit.faults == []


def test_a_job_that_lingers_after_its_last_step_was_not_slow(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser, 390) as visit:
        name = next(name for name in HOSTILE if name.startswith("long-"))
        wait_until(lambda: state_of(live, name) == "finished")
        page = sign_in(visit, live.address, operator_token(live), f"#/compare/lingers/{name}")
        figure = page.locator("figure", has=page.get_by_role("heading", name="Throughput"))
        rows = numbers_of(figure.locator(".numbers"))
        rates = [float(row[1]) for row in rows if row[1][:1].isdigit()]
        assert rates
        assert min(rates) > 0.5  # it made 2.5 mini-batches a second, and then none for 6 s
        # A long name is wrapped beside its colour and its state.
        key = page.locator(".key", has_text=name).first
        for part in (".swatch", ".jobname", ".badge"):
            box = key.locator(part).bounding_box()
            assert box is not None
            assert box["width"] > 0
            assert 0 <= box["x"] <= 390 - box["width"]


def test_unknown_name_in_a_comparison_can_be_corrected(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        page.evaluate("location.hash = '#/compare/trains/no-such-job'")
        page.locator(".note.bad", has_text="no-such-job").wait_for()
        second = page.get_by_label("Second job")
        assert second.input_value() == "no-such-job"
        assert page.get_by_label("First job").input_value() == "trains"
        second.fill("short")
        page.get_by_role("button", name="Compare").click()
        page.locator("figure", has=page.get_by_role("heading", name="Progress")).wait_for()
        assert page.locator(".note.bad").count() == 0


def test_pages_of_a_search_count_what_they_show(
    browser: Browser, live: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_queries, "MAX_SEARCHED_JOBS", 2)
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        page.evaluate("location.hash = '#/queue/all//others'")
        older = page.get_by_role("button", name="Older")
        page.get_by_text("among the newest 20,000 has this text").wait_for()
        row = page.get_by_role("link", name="others", exact=True)
        for turn in range(2, 100):
            older.click()
            page.get_by_text(f"page {turn}", exact=True).wait_for(state="attached")
            if row.count():
                break
            page.get_by_text("None on this page; older jobs follow.").wait_for()
        page.get_by_text("1 to 1, the newest first").wait_for()
        page.get_by_role("button", name="Newer").click()
        page.get_by_text("None on this page; older jobs follow.").wait_for()


def test_axis_of_huge_numbers_has_few_ticks(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        script = """async ([low, high]) => {
          const { plainAxis } = await import("./assets/charts/axes.mjs");
          const chart = { page: { colours: {} }, small: false };
          return plainAxis({}, chart, low, high).axisLabel.customValues;
        }"""
        for low in (2**52, 10**16, -(10**16)):
            assert len(page.evaluate(script, [low, low + 2])) <= 12
        assert page.evaluate(script, [0, 8]) == list(range(9))
        assert page.evaluate(script, [0.5, 3.9]) == pytest.approx([0.5, 1, 1.5, 2, 2.5, 3, 3.5])


def test_a_job_is_revised_and_cancelled_by_keyboard(browser: Browser, live: RunningService) -> None:
    live.client.post("/v1/jobs", json=training("doomed", 900, 1.0))
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/job/doomed")
        page.get_by_role("button", name="Revise").focus()
        page.keyboard.press("Enter")
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("Deadline").fill("nonsense")
        page.keyboard.press("Enter")
        dialog.get_by_role("alert").wait_for()
        dialog.get_by_label("Deadline").fill("40min")
        page.keyboard.press("Enter")
        dialog.wait_for(state="detached")
        assert live.client.get("/v1/jobs/doomed").json()["spec"]["utility"]["by"] == "40min"
        cancel = page.get_by_role("button", name="Cancel the job")
        cancel.focus()
        page.keyboard.press("Enter")
        page.locator("dialog[open]").wait_for()
        page.keyboard.press("Enter")  # the focus is on the button that changes nothing
        page.locator("dialog[open]").wait_for(state="detached")
        assert state_of(live, "doomed") != "cancelled"
        page.get_by_role("button", name="Cancel the job").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.locator(".head .badge").get_by_text("cancelled").wait_for()
        assert state_of(live, "doomed") == "cancelled"
        assert page.get_by_role("button", name="Cancel the job").count() == 0


def test_revision_of_a_command_has_the_fields_of_its_submission(
    browser: Browser, live: RunningService
) -> None:
    command = {
        "name": "command",
        "tenant": "red",
        "worker": {"gpu": 1},
        "steps": 1,
        "minibatch_time": "10min",
        "walltime": "1h",
        "run": {"command": "exec sleep 600"},
    }
    live.client.post("/v1/jobs", json=command).raise_for_status()
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/job/command")
        page.get_by_role("button", name="Revise").click()
        dialog = page.locator("dialog[open]")
        assert not dialog.get_by_label("Steps").count()
        dialog.get_by_label("Expected run time").fill("soon")
        dialog.get_by_role("button", name="Revise it").click()
        dialog.get_by_text("expected a duration").wait_for()
        dialog.get_by_label("Expected run time").fill("5min")
        dialog.get_by_label("Deadline").fill("40min")
        dialog.get_by_label("Priority").select_option("high")
        dialog.get_by_label("Time limit").fill("")
        dialog.get_by_role("button", name="Revise it").click()
        dialog.wait_for(state="detached")
        spec = live.client.get("/v1/jobs/command").json()["spec"]
        assert (spec["minibatch_time"], spec["by"], spec["priority"]) == ("300s", "40min", "high")
        assert "walltime" not in spec
        assert spec["steps"] == 1
        assert not visit.faults
    live.client.delete("/v1/jobs/command").raise_for_status()


def test_times_before_and_after_a_change_of_the_clock(
    browser: Browser, live: RunningService
) -> None:
    """On 25 October 2026, summer time ends at 01:00 UTC."""
    script = """async () => {
      const clock = (await import("./assets/timeline.mjs")).clockOf(3600, "2026-10-24T22:00:00Z");
      return [0, 2, 3, 4].map((slot) => [clock.time(slot), clock.label(clock.position(slot))]);
    }"""
    with Visit(browser, zone="Europe/Berlin") as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        assert page.evaluate(script) == [
            ["2026-10-25 00:00", "Oct 25"],
            ["2026-10-25 02:00", "02:00"],
            ["2026-10-25 02:00", "02:00"],
            ["2026-10-25 03:00", "03:00"],
        ]


def test_an_operator_drains_adds_and_removes_servers(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live))
        page.get_by_role("button", name="Add servers").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("Name").fill("extra")
        dialog.get_by_label("Capacity of each").fill("gpus: 4")
        dialog.get_by_role("button", name="Add").click()
        assert "did you mean 'gpu'" in dialog.get_by_role("alert").inner_text()
        dialog.get_by_label("Capacity of each").fill("gpu: 4\ncpu: 16")
        dialog.get_by_role("button", name="Add").click()
        page.get_by_role("button", name="Cordon extra").click()
        page.get_by_role("button", name="Cordon it").click()
        row = page.locator("tr[data-key=extra]")
        row.get_by_text("cordoned").wait_for()
        page.get_by_role("button", name="Drain extra").click()
        page.get_by_role("button", name="Drain it").click()
        row.get_by_text("drained").wait_for()
        page.get_by_role("button", name="Uncordon extra").click()
        page.get_by_role("button", name="Uncordon it").click()
        row.get_by_text("up", exact=True).wait_for()
        page.get_by_role("button", name="Remove extra").click()
        page.get_by_role("button", name="Remove it").click()
        row.wait_for(state="detached")
        names = [server["name"] for server in live.client.get("/v1/servers").json()["servers"]]
        assert names == ["g-0", "g-1", "g-2"]


def test_removing_a_server_with_jobs_requires_typing_its_name(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live))
        busy = live.client.get("/v1/jobs/trains").json()["servers"][0]
        page.get_by_role("button", name=f"Remove {busy}").click()
        dialog = page.locator("dialog[open]")
        assert "trains" in dialog.inner_text()
        dialog.get_by_role("textbox").fill("g")
        dialog.get_by_role("button", name="Remove it").click()
        dialog.get_by_text("this is not the name of the server").wait_for()
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert busy in [
            server["name"] for server in live.client.get("/v1/servers").json()["servers"]
        ]


def test_tenant_sees_only_its_own_jobs(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, live.token("red"))
        for view in ("#/", "#/queue/all", "#/activity", "#/tenants", "#/prices"):
            open_view(page, view)
            text = page.locator("body").inner_text()
            assert "others" not in text.replace("others'", "")
            assert "blue" not in text
            for name in ("Drain", "Remove", "Add servers", "Add a tenant", "Make a token"):
                assert page.get_by_role("button", name=name).count() == 0
        open_view(page, "#/job/trains")
        assert page.get_by_role("button", name="Cancel the job").count() == 1
        page.evaluate("location.hash = '#/job/others'")
        page.get_by_role("alert").get_by_text("unknown job 'others'").wait_for()


def test_an_expired_or_revoked_token_signs_out(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, live.token("red", expires="6s"), "#/queue")
        page.locator(".note").get_by_text("the token has expired").wait_for(timeout=60_000)
        assert page.evaluate("sessionStorage.length") == 0
    with Visit(browser) as visit:
        body = live.client.post("/v1/tokens", json={"tenant": "red"}).json()
        page = sign_in(visit, live.address, body["token"], "#/job/trains")
        live.client.delete(f"/v1/tokens/{body['id']}")
        page.locator(".note").get_by_text("You were signed out").wait_for(timeout=60_000)
        assert "#/job/trains" in page.url
        page.get_by_label("Token").fill(live.token("red"))
        page.keyboard.press("Enter")
        page.locator("h1").get_by_text("trains").wait_for()


HIDE = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => !window.seen})"


def test_hidden_tabs_leave_the_browsers_connections_to_the_visible_one(
    browser: Browser, live: RunningService
) -> None:
    token = operator_token(live)
    with Visit(browser) as visit:
        # more than a browser opens connections
        hidden = [visit.context.new_page() for _ in range(7)]
        for tab in hidden:
            tab.add_init_script(f"sessionStorage.setItem('shadowprice-token', '{token}'); {HIDE}")
            tab.goto(f"{live.address}/#/queue/all")
            tab.locator("main table").wait_for()
        page = sign_in(visit, live.address, token, "#/queue/all")
        tab = hidden[0]
        job = training("unseen", 1, run={"command": ["true"]})
        assert live.client.post("/v1/jobs", json=job).status_code == 200
        page.get_by_role("link", name="unseen").wait_for()
        assert not tab.get_by_role("link", name="unseen").count()
        tab.evaluate("window.seen = true; document.dispatchEvent(new Event('visibilitychange'))")
        tab.locator(".chip.live").wait_for()
        tab.get_by_role("link", name="unseen").wait_for()
        tab.evaluate("window.seen = false; document.dispatchEvent(new Event('visibilitychange'))")
        tab.locator(".chip.connecting").wait_for()
        assert not visit.faults


@pytest.mark.parametrize("how", [{"modifiers": ["Control"]}, {"button": "middle"}], ids=str)
def test_link_in_a_new_tab_needs_no_second_sign_in(
    browser: Browser, live: RunningService, how: dict[str, Any]
) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        with visit.context.expect_page() as opened:
            page.get_by_role("link", name="trains", exact=True).click(**how)
        opened.value.locator("h1").get_by_text("trains", exact=True).wait_for()
        assert page.locator("h1").inner_text() == "Jobs"


def test_view_that_does_not_exist_is_left_again(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        for name in ("constructor", "__proto__", "nothing"):
            page.evaluate(f"location.hash = '#/{name}'")
            page.get_by_role("heading", name="Page not found").wait_for()
            open_view(page, "#/queue")
            assert page.locator("h1").inner_text() == "Jobs"
        assert not visit.faults


def test_outlook_is_that_of_the_shown_job(browser: Browser, live: RunningService) -> None:
    """Several tenants have jobs of its name."""
    job = training("too large", 5, worker={"gpu": 64})
    first = live.client.post("/v1/jobs", json=job).json()
    live.client.post("/v1/jobs", json={**job, "tenant": "blue <b>"}).raise_for_status()
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), f"#/job/id:{first['id']}")
        page.locator(".note.info.lines").wait_for()
        assert not visit.faults


def test_earlier_parts_of_a_long_log_are_shown(browser: Browser, live: RunningService) -> None:
    last = 40_000
    count = ["sh", "-c", f"seq 1 {last}; exec sleep 600"]
    job = training("writes", 2_000, run={"command": count})
    assert live.client.post("/v1/jobs", json=job).status_code == 200
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/job/writes")
        log = page.get_by_role("log")

        def lines() -> list[str]:
            return log.inner_text().strip().split("\n")

        log.get_by_text(str(last)).wait_for()
        earlier = page.get_by_role("button", name="Earlier")
        while earlier.is_enabled():
            shown = lines()
            earlier.click()
            wait_until(lambda shown=shown: len(lines()) > len(shown))
        assert lines() == [str(number) for number in range(1, last + 1)]
        assert not page.get_by_label("follow").is_checked()
        page.get_by_label("follow").check()
        wait_until(lambda: len(lines()) < last and lines()[-1] == str(last))
        assert not visit.faults
    live.client.delete("/v1/jobs/writes").raise_for_status()


def test_dialog_is_closed_with_its_view(browser: Browser, live: RunningService) -> None:
    body = live.client.post("/v1/tokens", json={"tenant": "red"}).json()
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, body["token"], "#/job/trains")
        page.get_by_role("button", name="Cancel the job").click()
        page.evaluate("location.hash = '#/queue'")
        page.locator("h1").get_by_text("Jobs").wait_for()
        page.locator("dialog").wait_for(state="detached")
        open_view(page, "#/job/trains")
        page.get_by_role("button", name="Cancel the job").click()
        live.client.delete(f"/v1/tokens/{body['id']}").raise_for_status()
        page.locator(".note").get_by_text("You were signed out").wait_for(timeout=60_000)
        page.locator("dialog").wait_for(state="detached")
        wait_until(lambda: page.evaluate("document.activeElement.id") == "token")
    assert state_of(live, "trains") == "running"


def test_answer_that_breaks_off_is_fetched_again(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        visit.page.route(
            "**/v1/prices?*",
            lambda route: route.fulfill(body='{"slots": [', content_type="application/json"),
            times=1,
        )
        page = sign_in(visit, live.address, operator_token(live), "#/queue")
        page.evaluate("location.hash = '#/prices'")
        page.get_by_text("the connection broke during the response").wait_for()
        page.locator("main figure canvas").first.wait_for()
        page.get_by_text("the connection broke during the response").wait_for(state="detached")
        assert not visit.faults


def test_job_with_too_many_placements_is_shown_without_them(
    browser: Browser, live: RunningService
) -> None:
    def without_bars(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(
            response=answer,
            json={**answer.json(), "bars": None, "jobs": None, "promises": None},
        )

    with Visit(browser) as visit:
        visit.page.route("**/v1/timeline?job=*", without_bars)
        page = sign_in(visit, live.address, operator_token(live), "#/job/trains")
        page.get_by_role("heading", name="Generations").wait_for()
        assert not page.get_by_role("heading", name="Where it ran, and will").is_visible()
        assert not visit.faults


def test_second_click_on_a_page_button_turns_no_second_page(
    browser: Browser, live: RunningService
) -> None:
    with Visit(browser) as visit:
        visit.page.route(
            "**/v1/jobs?*",
            lambda route: route.continue_(url=route.request.url.replace("limit=50", "limit=4")),
        )
        page = sign_in(visit, live.address, operator_token(live), "#/queue/all")
        page.get_by_text("1 to 4, the newest first").wait_for()
        page.get_by_role("button", name="Older").evaluate(
            "(older) => { older.click(); older.click() }"
        )
        page.get_by_text("page 2", exact=True).first.wait_for(state="attached")
        page.get_by_text("5 to 8, the newest first").wait_for()
        page.get_by_role("button", name="Newer").click()
        page.get_by_text("1 to 4, the newest first").wait_for()
        assert not page.get_by_role("button", name="Newer").count()


def test_quote_form_shows_the_decision(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/quote")
        page.get_by_label("Steps").fill("20")
        page.get_by_label("Maximum workers").fill("2")
        before = live.client.get("/v1/jobs", params={"limit": 1}).json()["jobs"][0]["id"]
        page.get_by_role("button", name="Ask").click()
        page.get_by_role("heading", name="It would be admitted").wait_for()
        page.locator(".result .tile").get_by_text("Price").wait_for()
        page.get_by_label("gpu", exact=True).fill("1000")
        page.get_by_role("button", name="Ask").click()
        page.get_by_role("heading", name="It would be refused").wait_for()
        page.get_by_label("A mini-batch takes").fill("soon")
        page.get_by_role("button", name="Ask").click()
        assert "minibatch_time" in page.locator(".result").get_by_role("alert").inner_text()
        assert live.client.get("/v1/jobs", params={"limit": 1}).json()["jobs"][0]["id"] == before


def test_a_budget_is_set_and_its_statement_read(browser: Browser, live: RunningService) -> None:
    name = "meadow <i>"
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/tenants")
        assert live.client.put(f"/v1/tenants/{quote(name, safe='')}", json={}).status_code == 200
        page.get_by_role("button", name=f"Change the budget of {name}").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("Points").fill("40")
        dialog.get_by_label("Every").fill("soon")
        page.keyboard.press("Enter")
        assert "budget.period" in dialog.get_by_role("alert").inner_text()
        dialog.get_by_label("Every").fill("1d")
        page.keyboard.press("Enter")
        dialog.wait_for(state="detached")
        row = page.locator("tr", has=page.get_by_role("link", name=f"statement of {name}"))
        row.get_by_text("40 points every 1d").wait_for()
        page.get_by_role("link", name=f"statement of {name}").click()
        page.locator("h1").get_by_text(f"Points of {name}", exact=True).wait_for()
        page.get_by_role("button", name="Give points").click()
        dialog.get_by_label("Points").fill("2.5")
        dialog.get_by_label("Note").fill("<b>well</b> done")
        page.keyboard.press("Enter")
        dialog.wait_for(state="detached")
        first = page.locator("tbody tr").first
        first.get_by_text("<b>well</b> done", exact=True).wait_for()
        assert "+2.50" in first.inner_text()
        assert "42.50" in first.inner_text()
        box = page.locator("figure", has=page.get_by_role("heading", name="Held"))
        assert [float(row[1]) for row in numbers_of(box.locator(".numbers"))][-2:] == [40, 42.5]
        page.get_by_role("button", name="Previous period").click()
        page.get_by_text("Nothing was granted or paid").wait_for()
        assert all("422" in fault for fault in visit.faults)  # of the wrong period
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, live.token(name), "#/tenants")
        page.get_by_role("link", name=f"statement of {name}").click()
        page.locator("tbody tr").first.wait_for()
        assert page.get_by_role("button", name="Give points").count() == 0
        assert visit.faults == []
    live.client.delete(f"/v1/tenants/{quote(name, safe='')}")


def test_tenants_and_tokens_are_managed(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live), "#/tenants")
        page.get_by_role("button", name="Add a tenant").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("Name").fill("green")
        dialog.get_by_label("Share", exact=True).fill("gpu: 2")
        dialog.get_by_role("button", name="Add").click()
        page.get_by_role("button", name="Make a token for green").click()
        page.locator("dialog[open]").get_by_role("button", name="Make it").click()
        token = page.get_by_role("textbox", name="The token").input_value()
        page.get_by_role("button", name="Close").click()
        # A dialog is removed from the page a moment after it was closed.
        page.locator("dialog").wait_for(state="detached")
        with live.as_(token) as green:
            assert green.get("/v1/service").json()["caller"]["tenant"] == "green"
        assert token not in page.content()
        # From the API, because the page may not have drawn the new one yet.
        tokens = live.client.get("/v1/tokens").json()["tokens"]
        number = max(token["id"] for token in tokens if token["tenant"] == "green")
        page.get_by_role("button", name=f"Revoke token {number}", exact=True).click()
        page.get_by_role("button", name="Revoke it").click()
        page.locator("dialog[open]").wait_for(state="detached")
        with live.as_(token) as green:
            assert green.get("/v1/service").status_code == 401
        page.get_by_role("button", name="Remove green").click()
        page.get_by_role("button", name="Remove it").click()
        page.get_by_role("button", name="Remove green").wait_for(state="detached")


def test_dashboard_is_usable_by_keyboard(browser: Browser, live: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, live.address, operator_token(live))
        assert page.evaluate("document.activeElement.tagName") == "H1"
        page.reload()
        page.locator("header.top").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.tagName") == "MAIN"
        assert page.locator("h1").inner_text() == "Cluster"
        page.get_by_role("link", name="Jobs", exact=True).focus()
        page.keyboard.press("Enter")
        page.locator("h1").get_by_text("Jobs").wait_for()
        assert page.evaluate("document.activeElement.tagName") == "H1"
        assert page.get_by_role("link", name="Jobs", exact=True).get_attribute("aria-current")
        link = page.get_by_role("link", name="trains", exact=True)
        link.focus()
        page.wait_for_timeout(2_500)  # tables were replaced meanwhile
        assert page.evaluate("document.activeElement.textContent") == "trains"
        page.keyboard.press("Enter")
        page.locator("h1").get_by_text("trains").wait_for()
        open_view(page, "#/")
        page.locator("figure .canvas").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#live").inner_text()


def test_assets_are_sent_once_and_no_other_files(live: RunningService) -> None:
    with httpx.Client(base_url=live.address) as client:
        first = client.get("/")
        assert "default-src 'none'" in first.headers["content-security-policy"]
        assert "unsafe" not in first.headers["content-security-policy"]
        tag = {"If-None-Match": first.headers["etag"]}
        assert client.get("/", headers=tag).status_code == 304
        charts = client.get("/assets/charts/echarts.min.js")
        assert charts.headers["content-encoding"] == "gzip"
        for accepted in ("identity", "gzip;q=0", "*;q=0", "br, gzip ; q=0.00"):
            plain = client.get(charts.url, headers={"Accept-Encoding": accepted})
            assert "content-encoding" not in plain.headers
        for accepted in ("*", "br;q=1, GZIP;q=0.001"):
            packed = client.get(charts.url, headers={"Accept-Encoding": accepted})
            assert packed.headers["content-encoding"] == "gzip"
        assert charts.text == inline_assets.asset("echarts.min.js")
        # The client sends the first one as /api/app.py; only assets are public.
        assert client.get("/assets/../api/app.py").status_code == 401
        for path in ("/assets/..%2f__init__.py", "/assets/nothing.mjs"):
            assert client.get(path).status_code == 404
        assert "/assets/{path}" not in live.client.get("/v1/openapi.json").text


# ------------------------------------------------------------------ killed, and many


@contextmanager
def served(folder: Path, port: int, kill: bool) -> Iterator[str]:
    """Serve in a process of its own, which is killed or interrupted in the end."""
    command = [sys.executable, "-c", "from shadowprice.cli.main import main; main()", "serve"]
    command += ["--cluster", str(folder / "cluster.yaml"), "--data", str(folder / "data")]
    command += ["--policy", "fifo", "--observe", "--executor", "none", "-q", "-o", "json"]
    with subprocess.Popen(
        [*command, "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            os.kill(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(WAIT_LIMIT_SECONDS)


def test_open_page_reconnects_after_the_service_is_killed(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(dict(CLUSTER)))
    plain = {key: value for key, value in training("before", 100).items() if key != "run"}
    with Visit(browser) as visit:
        with served(tmp_path, 0, kill=True) as address:
            token = (tmp_path / "data" / "operator.token").read_text().strip()
            head = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=address, headers=head) as client:
                client.post("/v1/jobs", json=plain)
            page = sign_in(visit, address, token, "#/queue")
            page.get_by_role("link", name="before").wait_for()
            port = int(address.rpartition(":")[2])
        page.get_by_text("Not live.").wait_for()
        assert page.locator("body.stale").count() == 1
        assert page.get_by_role("link", name="before").count() == 1  # known values stay
        with served(tmp_path, port, kill=False) as address:
            with httpx.Client(base_url=address, headers=head) as client:
                client.post("/v1/jobs", json=plain | {"name": "after"})
            page.get_by_role("link", name="after").wait_for(timeout=60_000)
            assert page.locator(".chip.live").count() == 1
            assert page.locator("body.stale").count() == 0


def test_many_servers_are_grouped_and_searchable(browser: Browser, tmp_path: Path) -> None:
    cluster = {
        "slot": "10min",
        "horizon": 30,
        "servers": [{"name": "node", "count": 500, "capacity": {"gpu": 8}}],
    }
    with run_service(tmp_path, cluster=cluster, policy="oasis") as live:
        job = training("wide-0", 10, worker={"gpu": 4}, tenant=None, chunks=6)
        job |= {"minibatch_time": "200min", "utility": {"kind": "constant", "value": 50}}
        del job["run"]
        names = [f"wide-{index}" for index in range(130)]
        batch = {"jobs": [job | {"name": name} for name in names]}
        live.client.post("/v1/jobs", json=batch, params={"wait": 60}).raise_for_status()
        with Visit(browser) as visit:
            page = sign_in(visit, live.address, operator_token(live))
            page.get_by_role("heading", name="Load").wait_for()
            assert page.get_by_text("servers 1 to 16 of 500").count() == 1
            page.get_by_label("Find servers by name").fill("node-437")
            page.get_by_role("link", name="node-437").wait_for()
            assert page.locator("main tbody tr").count() == 1
            page.get_by_role("link", name="node-437").click()
            page.locator("h1").get_by_text("Server node-437").wait_for()
            open_view(page, "#/queue/all")
            seen: list[str] = []
            for _ in range(len(names)):
                seen += page.locator("td .jobname").all_inner_texts()
                older = page.get_by_role("button", name="Older")
                if not older.count():
                    break
                older.click()
                page.get_by_text(f"{len(seen) + 1} to ").wait_for()
            assert seen == names[::-1]
            assert page.evaluate(BLANK) == 0
            assert visit.faults == []
