"""The auditor finds every fault, in forged logs with one fault each."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.testbed.audit import GENERATION, JOB, SERVICE, Audit

KEY = "0123456789abcdef0123456789abcdef"


def when(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def line(verb: str, pod: dict[str, Any], came: float, **more: Any) -> dict[str, Any]:
    about = {"resource": "pods", "namespace": "work", "name": pod["metadata"]["name"]}
    return {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": "shadowprice"},
        "objectRef": {**about, **more.get("about", {})},
        "requestObject": more.get("asked"),
        "responseObject": more.get("answer", pod),
        "responseStatus": {"code": more.get("status", 201 if verb == "create" else 200)},
        "requestReceivedTimestamp": when(came),
        "stageTimestamp": when(came + more.get("took", 0.25)),
    }


def pod(name: str, generation: int, uid: str = "", phase: str = "Pending", **meta: Any) -> dict:
    labels = {JOB: KEY, GENERATION: str(generation)}
    named = {"namespace": "work", "name": name, "uid": uid or name, "labels": labels}
    made = {"creationTimestamp": "1970-01-01T00:00:00Z"}
    return {"kind": "Pod", "metadata": {**named, **made, **meta}, "status": {"phase": phase}}


def removal(name: str, generation: int, came: float, uid: str = "") -> dict[str, Any]:
    gone = pod(name, generation, uid, deletionTimestamp=when(came), deletionGracePeriodSeconds=0)
    return line("delete", gone, came)


def deletion(name: str, generation: int, came: float) -> dict[str, Any]:
    deleted = pod(name, generation, deletionTimestamp=when(came), deletionGracePeriodSeconds=30)
    return line("delete", deleted, came)


def made(name: str, generation: int, came: float, **more: Any) -> dict[str, Any]:
    return line("create", pod(name, generation, **more), came)


def status(name: str, generation: int, phase: str, came: float) -> dict[str, Any]:
    about = {"about": {"subresource": "status"}}
    return line("patch", pod(name, generation, phase=phase), came, **about)


GOOD = [
    made("a-1", 1, 1), made("b-1", 1, 1), status("a-1", 1, "Running", 2),
    deletion("a-1", 1, 3), status("b-1", 1, "Failed", 4), removal("a-1", 1, 5),
    made("a-2", 2, 6), removal("b-1", 1, 7), status("a-2", 2, "Succeeded", 8), removal("a-2", 2, 9),
]  # fmt: skip


def test_a_log_without_a_fault_has_none() -> None:
    assert Audit.of(GOOD).faults() == []


def test_two_generations_at_once_are_found() -> None:
    lines = [made("a-1", 1, 1), deletion("a-1", 1, 2), made("a-2", 2, 3), removal("a-1", 1, 4)]
    lines.append(removal("a-2", 2, 5))
    (found,) = Audit.of(lines).faults()
    assert found == "work/a-2 of generation 2 was made while work/a-1 of generation 1 was live"


def test_pods_of_other_jobs_and_others_pods_may_be_there_at_once() -> None:
    other = pod("c-2", 2)
    other["metadata"]["labels"][JOB] = "f" * 32
    plain = pod("d", 0)
    plain["metadata"]["labels"] = {}
    lines = [made("a-1", 1, 1), line("create", other, 2), line("create", plain, 2)]
    audit = Audit.of(lines)
    assert audit.doubled() == []
    assert len(audit.orphaned()) == 2  # others' are not ours to remove


def test_jobs_of_two_services_are_two_even_with_one_name() -> None:
    first, second = pod("a-1", 1), pod("a-2", 2)
    first["metadata"]["labels"][SERVICE], second["metadata"]["labels"][SERVICE] = "x", "y"
    audit = Audit.of([line("create", second, 1), line("create", first, 2)])
    assert audit.doubled() == audit.backwards() == []
    assert [str(job) for job in audit.of_service("y").of_jobs()] == ["work/a-2"]


def test_a_generation_made_twice_is_found() -> None:
    lines = [made("a-1", 1, 1), removal("a-1", 1, 2), made("a-1", 1, 3, uid="again")]
    lines.append(removal("a-1", 1, 4, uid="again"))
    assert Audit.of(lines).faults() == ["work/a-1 was made 2 times"]


def test_an_older_generation_after_a_newer_is_found() -> None:
    lines = [made("a-2", 2, 1), removal("a-2", 2, 2), made("a-1", 1, 3), removal("a-1", 1, 4)]
    assert Audit.of(lines).faults() == ["work/a-1 of generation 1 came after 2"]


def test_a_pod_that_is_left_is_found_unless_it_may_be() -> None:
    lines = [made("a-1", 1, 1), status("a-1", 1, "Succeeded", 2)]
    assert Audit.of(lines).faults() == [
        "work/a-1 of generation 1 is left; deletion was requested by: none"
    ]
    assert Audit.of(lines).faults({(KEY, 1)}) == []
    assert Audit.of(lines).present() == {"a-1"}


def test_refused_events_have_no_effect() -> None:
    refused = {"status": 409, "answer": {"kind": "Status", "metadata": {}}}
    lines = [made("a-1", 1, 1), line("create", pod("a-2", 2), 2, **refused), removal("a-1", 1, 3)]
    audit = Audit.of(lines)
    assert audit.faults() == []
    assert [call.status for call in audit.calls] == [201, 409, 200]


def test_requests_that_overlap_are_in_either_order() -> None:
    # The removal came at 2.0 and was answered at 2.5; its watchers' requests at 2.3 are right.
    lines = [made("a-1", 1, 1), made("a-2", 2, 2.3)]
    lines += [{**removal("a-1", 1, 2.0), "stageTimestamp": when(2.5)}, removal("a-2", 2, 3)]
    assert Audit.of(lines).faults() == []


def test_a_pod_without_a_line_counts_from_its_creation() -> None:
    first = pod("a-1", 1, creationTimestamp=when(1), phase="Running")
    lines = [line("patch", first, 5), made("a-2", 2, 3), removal("a-1", 1, 6)]
    audit = Audit.of([*lines, removal("a-2", 2, 7)])
    assert not audit.pods["a-1"].logged
    assert len(audit.doubled()) == 1


def test_a_pod_without_a_node_is_removed_by_its_deletion() -> None:
    lines = [made("a-1", 1, 1), line("delete", pod("a-1", 1), 2), made("a-2", 2, 3)]
    assert Audit.of(lines).doubled() == []


def test_collections_and_evictions_are_followed() -> None:
    about = {"about": {"subresource": "eviction"}, "answer": {"kind": "Status"}}
    eviction = line("create", pod("a-1", 1), 2, **about)
    listed = {"kind": "PodList", "items": [pod("a-1", 1)]}
    gone = line("deletecollection", {"metadata": {"name": None}}, 3, answer=listed)
    audit = Audit.of([made("a-1", 1, 1), eviction, gone])
    assert audit.faults() == []
    assert audit.pods["a-1"].told == ("shadowprice evicts", "shadowprice grace None")


def test_requests_are_counted_by_job_verb_and_user() -> None:
    named = {"about": {"resource": "configmaps", "name": f"shadowprice-{KEY}"}}
    config = {"metadata": {"name": f"shadowprice-{KEY}"}}
    other = line("patch", config, 1, **named)
    other["user"] = {"username": "admin"}
    begun = {**line("watch", config, 1, about={"resource": "pods"}), "stage": "ResponseStarted"}
    lines = [line("update", config, 1, **named), line("update", config, 2, **named), other, begun]
    counts = Audit.of(lines).counts("shadowprice")
    assert counts == {KEY[:16]: {"update configmaps": 2}}
    assert Audit.of(lines).counts()[KEY[:16]]["patch configmaps"] == 1
    created = line("create", {"metadata": {"name": None}}, 3, asked=config, about={"name": None})
    assert set(Audit.of([created]).counts()) == {KEY[:16]}


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    text = "".join(json.dumps(one) + "\n" for one in GOOD)
    path.write_text(text + '{"stage": "Resp')
    assert len(Audit.read(path).calls) == len(GOOD)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), max_size=12), st.data())
def test_duplicates_are_those_of_a_check_at_every_moment(
    lives: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Pods come and go at random; a naive check of every instant has to agree."""
    number = count()
    lines, spans = [], []
    for generation, length in lives:
        start = data.draw(st.integers(0, 20))
        name = f"p{next(number)}"
        lines += [made(name, generation, start), removal(name, generation, start + length)]
        spans.append((generation, start + 0.25, start + length))
    lines.sort(key=lambda one: one["stageTimestamp"])
    instants = [begin for _, begin, _ in spans]
    naive = any(
        len({generation for generation, begin, end in spans if begin <= instant < end}) > 1
        for instant in instants
    )
    assert bool(Audit.of(lines).doubled()) == naive


@pytest.mark.parametrize("removed", range(len(GOOD)))
def test_every_line_of_the_good_log_is_needed_or_harmless(removed: int) -> None:
    lines = [one for number, one in enumerate(GOOD) if number != removed]
    harmless = {0, 1, 2, 3, 8}  # later lines, too
    assert bool(Audit.of(lines).faults()) == (removed not in harmless)
