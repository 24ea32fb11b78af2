"""Shares of namespaces on a real API server: promises respect them, and errors are reported."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools.testbed import Testbed

from tests.kubernetes.operators import User, eventually, installed, manifest, operated
from tests.support.services import RunningService

SHARE = "shadowprice.io/share"


@pytest.fixture(scope="module")
def user(control_plane: Testbed) -> User:
    return installed(control_plane)


@contextmanager
def namespaces(user: User, **annotations: str | None) -> Iterator[None]:
    """Namespaces with shares, deleted afterwards."""
    try:
        for name, text in annotations.items():
            meta: dict[str, Any] = {"name": name}
            if text is not None:
                meta["annotations"] = {SHARE: text}
            user.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        yield
    finally:
        for name in annotations:
            user.bed.kubectl("delete", "tj", "-n", name, "--all", "--timeout=60s")
        user.bed.kubectl("delete", "namespace", "--wait=false", *annotations)
        for name in annotations:
            eventually(functools.partial(_gone, user, name), f"the end of {name}")


def _gone(user: User, name: str) -> bool:
    result = user.bed.kubectl("get", "namespace", name, "--ignore-not-found", "-o", "name")
    return not result.strip()


def quota(namespace: str, **hard: str) -> dict[str, Any]:
    meta = {"name": "own", "namespace": namespace, "labels": {SHARE: "true"}}
    names = {key.replace("_", "."): amount for key, amount in hard.items()}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": names}}


def shares(service: RunningService) -> dict[str, Any]:
    body = service.client.get("/v1/tenants").json()["tenants"]
    return {one["name"]: one["share"] for one in body}


def long_job(name: str, namespace: str, work: int, by: str) -> dict[str, Any]:
    return manifest(
        name,
        namespace,
        chunks=1,
        minibatches=work,
        worker={"cpu": 2},
        utility={"kind": "deadline", "value": 50, "by": by},
    )


@pytest.mark.parametrize("stated", [False, True], ids=["without shares", "with shares"])
def test_a_namespace_finds_its_share_whatever_others_were_promised(
    user: User, tmp_path: Path, *, stated: bool
) -> None:
    tag = "own" if stated else "all"
    busy, late, third = f"busy-{tag}", f"late-{tag}", f"third-{tag}"
    with (
        operated(user.bed, tmp_path, policy="rolling") as service,
        namespaces(user, **{busy: None, late: "{cpu: 2}" if stated else None, third: None}),
    ):
        if stated:
            user.apply(quota(busy, requests_cpu="2"))
            eventually(
                lambda: shares(service).get(busy) == {"cpu": "2"} and late in shares(service),
                "the shares",
            )
            assert shares(service)[late] == {"cpu": "2"}

        def promised(name: str, namespace: str) -> bool:
            result = str(user.condition(name, "Admitted", namespace)["reason"])
            # Without a promise it waits, or runs on spare capacity.
            assert result in {"Promised", "Standby", "AdmittedWithoutPromise"}
            return result == "Promised"

        # Two jobs that would fill the machine for longer than the third can wait.
        user.apply(long_job("first", busy, 150, "190s"))
        eventually(lambda: user.condition("first", "Admitted", busy), "an answer")
        user.apply(long_job("second", busy, 150, "190s"))
        eventually(lambda: user.condition("second", "Admitted", busy), "an answer")
        if not stated:  # in the next slot, when its value is known to be enough
            eventually(lambda: promised("second", busy), "its promise")
        user.apply(long_job("mine", late, 60, "120s"))
        eventually(lambda: user.condition("mine", "Admitted", late), "an answer")

        assert promised("first", busy)
        assert promised("second", busy) != stated
        assert promised("mine", late) == stated
        # A namespace without a share is a tenant like others, and owns nothing.
        user.apply(long_job("guest", third, 10, "9min"))
        eventually(lambda: user.condition("guest", "Admitted", third), "an answer")
        promised("guest", third)
        assert shares(service).get(third, {}) == {}


def test_an_invalid_share_is_reported_and_leaves_the_others(user: User, tmp_path: Path) -> None:
    with (
        operated(user.bed, tmp_path, policy="rolling") as service,
        namespaces(user, good="{cpu: 1}", bad="{gpus: 8}"),
    ):
        eventually(lambda: shares(service).get("good") == {"cpu": "1"}, "the share")
        assert "bad" not in shares(service)

        def event_messages(namespace: str) -> list[str]:
            words = ("get", "events", "-n", namespace, "-o", "json")
            items = json.loads(user.bed.kubectl(*words))["items"]
            return [item["message"] for item in items if item["reason"] == "ShareNotTaken"]

        eventually(lambda: event_messages("bad"), "the event")
        assert event_messages("bad") == [f"{SHARE}: no server has 'gpus'; counted here: cpu"]
        # Fixed, but now the shares exceed the machine: all stays as it was, with an error.
        user.bed.kubectl("annotate", "namespace", "bad", f"{SHARE}={{cpu: 2}}", "--overwrite")
        eventually(lambda: shares(service).get("bad") == {"cpu": "2"}, "the mended share")
        user.bed.kubectl("annotate", "namespace", "bad", f"{SHARE}={{cpu: 9}}", "--overwrite")
        eventually(lambda: event_messages("good"), "the event")
        [line] = event_messages("good")
        assert line.startswith("shares of cpu add up to 10, and the servers hold 4")
        assert shares(service)["bad"] == {"cpu": "2"}
        user.bed.kubectl("annotate", "namespace", "bad", f"{SHARE}-")
        eventually(lambda: "bad" not in shares(service), "its end")
        assert shares(service)["good"] == {"cpu": "1"}
