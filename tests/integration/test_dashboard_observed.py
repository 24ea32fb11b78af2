"""The dashboard's pages of past and hypothetical runs, in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shadowprice.executors.contract import ObservedJob, ServerAllocation
from tests.support import axe
from tests.support.browsers import BLANK, CHROMIUM, NAMELESS, OVERFLOWING, Visit, browser
from tests.support.dashboard import HOSTILE, open_view, operator_token, sign_in
from tests.support.recording_executor import CLUSTER, RecordingExecutor, short
from tests.support.services import RunningService, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the dashboard is not looked at"),
]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that observes submitted and unmanaged jobs with names of every kind."""
    witness = RecordingExecutor()
    names = ["a", "b", *HOSTILE]
    folder = tmp_path_factory.mktemp("observed")
    with run_service(folder, cluster=CLUSTER, executor=witness, observe=True) as live:
        for name in names:
            live.client.post("/v1/jobs", json=short(name, tenant="red")).raise_for_status()
        began = time.time()
        seen = [
            ObservedJob(name, (ServerAllocation(f"g-{index % 2}", 1),), began)
            for index, name in enumerate(names)
        ]
        strangers = [
            ObservedJob(f"stranger {name}", (ServerAllocation("else", 1),), began)
            for name in HOSTILE
        ]
        witness.sees = (*seen, *strangers)
        looks = witness.looks
        wait_until(lambda: witness.looks > looks + 2)
        witness.sees = (*seen[1:], *strangers[:2])  # the first one ended

        def over() -> bool:
            jobs = live.client.get("/v1/comparison/jobs").json()["jobs"]
            first = {job["name"]: job for job in jobs}["a"]
            return first["gain"] is not None

        wait_until(over)

        def played() -> bool:
            body = live.client.get("/v1/comparison").json()
            return bool(body["simulated"]["finished"] == len(names))

        wait_until(played)
        yield live


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_comparison_draws_both_schedulers(
    browser: Browser, watched: RunningService, width: int, scheme: str
) -> None:
    with Visit(browser, width, scheme) as visit:
        axe.prepare(visit.context)
        page = sign_in(visit, watched.address, operator_token(watched), "#/observed")
        page.get_by_role("link", name="a", exact=True).wait_for()
        page.get_by_role("heading", name="What really ran where").wait_for()
        assert axe.objections(page, "observed") == []
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate(BLANK) == 0
        body = watched.client.get("/v1/comparison").json()
        earned = page.locator(".tile", has_text="Would have earned").locator("b").inner_text()
        assert float(earned.replace(",", "")) == pytest.approx(body["simulated"]["utility"], abs=1)
        row, other = (
            page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))
            for name in ("a", "b")
        )
        assert row.get_by_text("ended").count() == 1
        assert other.get_by_text("running").count() == 1
        assert page.get_by_text("unknown", exact=True).count() == len(HOSTILE)
        assert page.get_by_text("ran without being submitted here. Their").count() == 1
        assert page.evaluate("window.hacked") is None
        assert visit.faults == []
        response = watched.client.post("/v1/whatif", json={"days": 1, "servers": {"g": 1}})
        run = response.json()["id"]
        page.evaluate("(hash) => { location.hash = hash }", f"#/whatif/{run}")
        page.get_by_role("heading", name=f"What if {run}").wait_for()
        assert axe.objections(page, "what-if, running") == []
        page.get_by_text("Gain", exact=True).wait_for(timeout=WAIT_LIMIT_SECONDS * 1_000)
        assert axe.objections(page, "what-if") == []


def test_tenants_have_no_whatif_page(browser: Browser, watched: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, watched.address, watched.token("red"), "#/observed")
        assert page.get_by_role("link", name="What if").count() == 0
        page.get_by_role("link", name="a", exact=True).wait_for()
        open_view(page, "#/queue/all")
        page.evaluate("location.hash = '#/whatif'")
        page.get_by_text("Page not found").wait_for()
        assert visit.faults == []


def test_whatif_is_started_followed_and_shown(browser: Browser, watched: RunningService) -> None:
    with Visit(browser) as visit:
        page = sign_in(visit, watched.address, operator_token(watched), "#/whatif")
        page.get_by_role("button", name="Simulate").click()
        page.get_by_text("no change is requested").wait_for()
        page.get_by_label("g", exact=True).fill("-9")
        page.get_by_role("button", name="Simulate").click()
        page.get_by_text("can't remove 9 of 2 servers").wait_for()
        page.get_by_label("g", exact=True).fill("2")
        page.get_by_label("Policy").select_option("drf")
        page.get_by_role("button", name="Simulate").click()
        page.get_by_role("heading", name=re.compile(r"What if \d")).wait_for()
        page.get_by_text("Gain", exact=True).wait_for(timeout=WAIT_LIMIT_SECONDS * 1_000)
        run = page.url.rpartition("/")[2]
        body = watched.client.get(f"/v1/whatif/{run}").json()
        assert body["question"]["servers"] == {"g": 2}
        assert body["question"]["policy"] == "drf"
        row = page.locator("tbody tr[data-key='total_utility']")
        assert row.locator("td").count() == 4
        page.get_by_role("link", name="← All what-if runs").click()
        page.get_by_role("link", name="+2 g, policy drf").wait_for()
        # The console of every browser shows the invalid response (422).
        assert [fault for fault in visit.faults if "422" not in fault] == []
