"""Runs to render, and checks of rendered pages."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np

from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Sigmoid
from shadowprice.policies.registry import make_policy
from shadowprice.results.report import inline_assets
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.driver import Incident
from shadowprice.simulator.scenario import Scenario, record_run
from shadowprice.simulator.trials import SeedRuns, collect_seed_runs
from tests.support.flat_rate import FlatPricePolicy
from tests.support.pdors_cases import build_pool, random_two_rate_job
from tests.support.policies import RandomPolicy
from tests.support.workloads import make_cluster, make_job

VOID = {"meta", "input", "br"}


def unpack_data(script: str) -> object:
    """Return the value of a `data_script`, as the page's script reads it."""
    match = re.fullmatch(
        r'<script type="[a-z/]+"(?: id="[^"]*")?(?: data-deflated="(\w+)")?>(.*)</script>',
        script,
        re.DOTALL,
    )
    if match is None:
        raise ValueError("not a block of data")
    encoding, body = match.groups()
    if encoding is None:
        return json.loads(body)
    data = zlib.decompress(base64.b64decode(body))
    return np.frombuffer(data, np.uint8) if encoding == "bytes" else json.loads(data)


class Balanced(HTMLParser):
    """Parser that checks the order of closed elements and collects the links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v or "" for name, v in attrs if name in {"src", "href", "xlink:href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def check_page(text: str) -> None:
    """Check that a page is complete, loads nothing, and runs only its own scripts."""
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    for target in parser.loads:
        assert target.startswith("#") or re.fullmatch(
            r"[^/:]+/report\.html(#job=[\w.%~-]+)?", target
        )
    plain, running = re.subn(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert running == 2
    content = inline_assets.content_security_policy()
    assert f'<meta http-equiv="Content-Security-Policy" content="{content}">' in text
    for forbidden in ("http:", "https:", "@import", "url(", "javascript:", "NaN", "Infinity"):
        assert forbidden not in plain
    assert len(text.encode()) < 2_000_000


def page_data(text: str) -> list[Any]:
    """Return all data blocks of a page, in order."""
    result = re.findall(r"<script type=.*?</script>", text, re.DOTALL)
    return [unpack_data(block) for block in result]


def simulated_run(price: float = 0.5, jobs: int = 8, **changes: object) -> RunData:
    cluster = make_cluster(3, 2)
    work = [
        make_job(
            cluster,
            f"job-{index}",
            arrival=index // 2,
            utility=Sigmoid(5.0 + index, 0.5, 2.0),
            **changes,
        )
        for index in range(jobs)
    ]
    return record_run(
        Scenario(
            cluster,
            work,
            incidents=[ServerLost(2, cluster.names[0]), JobCancelled(9, "job-7")][: jobs // 4],
        ),
        "flat-rate",
        FlatPricePolicy(price),
    )


def seed_runs() -> SeedRuns:
    """Return runs of two policies with six seeds; one policy is random."""
    cluster = make_cluster(3, 2)
    work = [
        make_job(cluster, f"job-{index}", arrival=index, utility=Sigmoid(5.0, 0.5, 2.0))
        for index in range(6)
    ]
    measured: list[tuple[str, int, Any]] = []
    for seed in range(6):
        for name, policy in (
            ("flat-rate", FlatPricePolicy()),
            ("wanderer <b>", RandomPolicy(seed)),
        ):
            run = record_run(Scenario(cluster, work, until=30, seed=seed), name, policy)
            measured.append((name, seed, run.info))
    return collect_seed_runs(measured)


def planned_run(jobs: int = 12) -> RunData:
    """Return a planner's run with lost servers, so that some plans are not kept."""
    rng = np.random.default_rng(2)
    on = build_pool([(3, 6, 6), (2, 6, 4), (2, 3, 5)], horizon=16)
    work = [random_two_rate_job(on, rng, f"job-{index}", latest=9) for index in range(jobs)]
    policy = make_policy("pdors", PolicyContext(on, work, 20), {})
    incidents = [
        ServerLost(3, on.names[0]),
        ServerLost(3, on.names[1]),
        ServerBack(8, on.names[0]),
        ServerBack(8, on.names[1]),
    ]
    return record_run(Scenario(on, work, until=20, incidents=incidents), "pdors", policy)


def flat_run(jobs: int) -> RunData:
    cluster = make_cluster(3, 2)
    work = [
        make_job(
            cluster, f"job-{index}", arrival=index // 3, utility=Sigmoid(5.0 + index, 0.5, 2.0)
        )
        for index in range(jobs)
    ]
    return record_run(Scenario(cluster, work), "flat-rate", FlatPricePolicy(0.5))


def promised_run() -> RunData:
    """Return a run of `rolling` with lost servers, so that promises are moved."""
    cluster = make_cluster(4, 2, horizon=30)
    work = [
        make_job(
            cluster,
            f"job-{index}",
            arrival=index // 3,
            chunks=8,
            utility=Sigmoid(5.0 + index, 0.5, 8.0),
        )
        for index in range(9)
    ]
    policy = make_policy("rolling", PolicyContext(cluster, None, 40), {})
    incidents: list[Incident] = [ServerLost(3, name) for name in cluster.names[:3]]
    incidents += [ServerBack(12, name) for name in cluster.names[:3]]
    return record_run(Scenario(cluster, work, until=40, incidents=incidents), "rolling", policy)
