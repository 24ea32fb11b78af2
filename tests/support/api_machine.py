"""Random calls of the REST API over restarts, checked against a small model."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support.services import RunningService, job, run_service
from tests.support.simulated_world import ManualClock
from tests.support.waiting import wait_until

EXAMPLES = int(os.environ.get("API_EXAMPLES", "0"))
CLOSED = {"finished", "refused", "failed", "cancelled"}
TENANTS = ["red", "blue"]
SERVERS = ["g-0", "g-1", "h"]

"""The first stays; others come and go."""

CLUSTER = {
    "slot": "1h",
    "horizon": 30,
    "tenants": [{"name": name} for name in TENANTS],
    "servers": [{"name": "g", "count": 2, "capacity": {"gpu": 4, "cpu": 16}}],
}

names = st.sampled_from(["a", "b", "c", "a/b", "é%20", "x" * 200])

tenants = st.sampled_from(TENANTS)

contents = st.integers(0, 2)

servers = st.sampled_from(SERVERS)


@dataclass
class Known:
    """Expected state of a job."""

    tenant: str
    content: int
    id: int
    submitted: str
    last: dict[str, Any] | None = None
    """Last record of a closed job, which doesn't change any more."""


def body(name: str, tenant: str, content: int) -> dict[str, Any]:
    work = [6, 20, 400][content]  # done in a slot, in some, or never in time
    utility = {"kind": "deadline", "value": 50, "by": "9 slots"}
    return job(name, tenant=tenant, minibatches=work, worker={"gpu": 2, "cpu": 1}, utility=utility)


class ApiMachine(RuleBasedStateMachine):
    """State machine of the service and a model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="shadowprice-stateful-"))
        self.clock = ManualClock()
        self.jobs: dict[tuple[str, str], Known] = {}
        """The newest job of each tenant and name."""
        self.former: list[tuple[str, Known]] = []
        """Jobs whose names others have, and the names."""
        self.closed: dict[str, str] = {}  # state of each drained or cordoned server
        self.servers = {"g-0", "g-1"}
        self.tenants = set(TENANTS)
        self.tokens: dict[str, str] = {}
        self.revoked: list[str] = []
        self.stack = ExitStack()
        self.open()

    def open(self) -> None:
        self.stack = ExitStack()
        live = run_service(self.folder, cluster=CLUSTER, policy="oasis", clock=self.clock)
        self.live: RunningService = self.stack.enter_context(live)

    def teardown(self) -> None:
        self.stack.close()
        shutil.rmtree(self.folder)

    # ------------------------------------------------------------------ asking

    def call(self, method: str, path: str, *, token: str | None = None, **more: Any) -> Any:
        if token is not None:
            more["headers"] = {"Authorization": f"Bearer {token}"}
        return self.live.client.request(method, path, **more)

    def job(self, known: Known) -> dict[str, Any]:
        answer = self.call("GET", f"/v1/jobs/id:{known.id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def everything(self) -> dict[str, Any]:
        listed = self.call("GET", "/v1/jobs", params={"limit": 1_000}).json()["jobs"]
        service = self.call("GET", "/v1/service").json()
        return {
            "time": {
                key: service[key] for key in ("origin", "slot", "next_slot", "next_slot_begins")
            },
            "jobs": listed,
            "servers": self.call("GET", "/v1/servers").json()["servers"],
            "tenants": self.call("GET", "/v1/tenants").json()["tenants"],
            "decisions": self.call("GET", "/v1/decisions").json()["decisions"],
        }

    # ------------------------------------------------------------------ rules

    @initialize()
    def tokens_for_all(self) -> None:
        self.tokens = {name: self.live.token(name) for name in TENANTS}
        # Most dozens of calls run nothing that later ones could break.
        for name, tenant, content in [("a", "red", 1), ("b", "blue", 2), ("c", "blue", 0)]:
            self.submit_one(name, tenant, content, own=True)

    @rule(name=names, tenant=tenants, content=contents, own=st.booleans())
    def submit(self, name: str, tenant: str, content: int, own: bool) -> None:
        self.submit_one(name, tenant, content, own)

    def submit_one(self, name: str, tenant: str, content: int, own: bool) -> None:
        token = self.tokens[tenant] if own else None
        answer = self.call("POST", "/v1/jobs", token=token, json=body(name, tenant, content))
        self.taken(name, tenant, content, answer.status_code, answer.json())

    def taken(self, name: str, tenant: str, content: int, status: int, expected: Any) -> None:
        known = self.jobs.get((tenant, name))
        if known is not None:
            # Time stands still, so the job ended before the submission, or the submission reports
            # its end.
            last = self.job(known) if status != 200 or expected["id"] == known.id else known.last
            state = "open" if last is None or last["state"] not in CLOSED else last["state"]
            if state == "open" and known.content != content:
                assert status == 409, expected
                assert expected["code"] == "name-conflict"
                return
            if known.content == content and state in {"open", "finished"}:
                assert status == 200, expected
                assert expected["id"] == known.id
                return
            self.former.append((name, known))
        assert status == 200, expected
        self.jobs[tenant, name] = Known(tenant, content, expected["id"], expected["submitted"])
        assert expected["id"] == max(record.id for record in self.jobs.values())

    @rule(
        many=st.lists(st.tuples(names, contents), min_size=1, max_size=4, unique_by=lambda x: x[0]),
        tenant=tenants,
    )
    def submit_several(self, many: list[tuple[str, int]], tenant: str) -> None:
        jobs = [body(name, tenant, content) for name, content in many]
        answer = self.call("POST", "/v1/jobs", params={"wait": 20}, json={"jobs": jobs})
        assert answer.status_code == 202, answer.text
        for (name, content), record in zip(many, answer.json()["jobs"], strict=True):
            problem = record.get("problem")
            status = problem["status"] if problem else 200
            self.taken(name, tenant, content, status, problem or record)
            assert problem or record["state"] != "pending"

    @rule(name=names, tenant=tenants)
    def cancel(self, name: str, tenant: str) -> None:
        self.cancelled(name, tenant)

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 5), own=st.booleans())
    def cancel_one_that_is_there(self, which: int, own: bool) -> None:
        tenant, name = sorted(self.jobs)[which % len(self.jobs)]
        self.cancelled(name, tenant if own else next(one for one in TENANTS if one != tenant))

    def cancelled(self, name: str, tenant: str) -> None:
        known = self.jobs.get((tenant, name))
        before = None if known is None else self.job(known)
        others = self.everything()["jobs"] if known is None else None
        answer = self.call("DELETE", f"/v1/jobs/{_quoted(name)}", token=self.tokens[tenant])
        if known is None:
            assert answer.status_code == 404, answer.text
            assert self.everything()["jobs"] == others
        elif before is not None and before["state"] in CLOSED - {"cancelled"}:
            assert answer.status_code == 409, answer.text
        else:
            assert answer.status_code == 200, answer.text
            assert answer.json()["state"] == "cancelled"
            known.last = answer.json()

    @rule(name=names, tenant=tenants, minibatches=st.integers(1, 30))
    def revise(self, name: str, tenant: str, minibatches: int) -> None:
        self.revised(name, tenant, minibatches)

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 5), minibatches=st.integers(1, 30))
    def revise_one_that_is_there(self, which: int, minibatches: int) -> None:
        tenant, name = sorted(self.jobs)[which % len(self.jobs)]
        self.revised(name, tenant, minibatches)

    def revised(self, name: str, tenant: str, minibatches: int) -> None:
        known = self.jobs.get((tenant, name))
        before = None if known is None else self.job(known)
        path, change = f"/v1/jobs/{_quoted(name)}", {"minibatches": minibatches}
        answer = self.call("PATCH", path, token=self.tokens[tenant], json=change)
        if known is None:
            assert answer.status_code == 404, answer.text
        elif before is not None and before["state"] in CLOSED:
            assert answer.status_code == 409, answer.text
        elif before is not None and answer.status_code == 409:
            assert answer.json()["code"] == "refused", answer.text
            assert self.job(known)["spec"] == before["spec"]
        else:
            assert answer.status_code == 200, answer.text
            assert self.job(known)["spec"]["minibatches"] == minibatches
            known.content = -1 - minibatches  # a repeated request is another submission

    @rule(tenant=tenants, content=contents)
    def quote(self, tenant: str, content: int) -> None:
        before = self.everything()
        requested = body("quoted", tenant, content)
        answer = self.call("POST", "/v1/quote", token=self.tokens[tenant], json=requested)
        assert answer.status_code == 200, answer.text
        assert self.everything() == before  # nothing is reserved, and no record remains

    @rule(server=servers, change=st.sampled_from(["drain", "cordon", "open"]))
    def close_or_open_server(self, server: str, change: str) -> None:
        self.change_server(server, change)

    @rule(which=st.integers(0, 2))
    def drain_one_that_is_there(self, which: int) -> None:
        self.change_server(sorted(self.servers)[which % len(self.servers)], "drain")

    def change_server(self, server: str, change: str) -> None:
        body = {"drain": False} if change == "open" else {change: True}
        answer = self.call("PATCH", f"/v1/servers/{server}", json=body)
        if server not in self.servers:
            assert answer.status_code == 404, answer.text
            return
        assert answer.status_code == 200, answer.text
        self.closed.pop(server, None)
        if change != "open":
            self.closed[server] = {"drain": "drained", "cordon": "cordoned"}[change]

    @rule(server=st.sampled_from(SERVERS[1:]), there=st.booleans())
    def keep_servers(self, server: str, there: bool) -> None:
        if there:
            known = server in self.servers
            new = {"name": server, "capacity": {"gpu": 4, "cpu": 16}}
            answer = self.call("POST", "/v1/servers", json=new)
            assert answer.status_code == (409 if known else 201), answer.text
            self.servers.add(server)
            return
        self.removed(server)

    @precondition(lambda self: len(self.servers) > 1)
    @rule(which=st.integers(0, 1))
    def remove_one_that_is_there(self, which: int) -> None:
        others = sorted(self.servers - {SERVERS[0]})
        self.removed(others[which % len(others)])

    def removed(self, server: str) -> None:
        answer = self.call("DELETE", f"/v1/servers/{server}")
        assert answer.status_code == (204 if server in self.servers else 404), answer.text
        self.servers.discard(server)
        self.closed.pop(server, None)

    @rule(name=st.sampled_from(["green", *TENANTS]), there=st.booleans())
    def keep_tenants(self, name: str, there: bool) -> None:
        path = f"/v1/tenants/{name}"
        if there:
            assert self.call("PUT", path, json={"share": {}}).status_code == 200
            self.tenants.add(name)
            return
        answer = self.call("DELETE", path)
        if name not in self.tenants:
            assert answer.status_code == 404, answer.text
        elif name == "green":
            assert answer.status_code == 204, answer.text
            self.tenants.discard(name)
        elif answer.status_code == 204:  # then it had no open jobs, and comes back unchanged
            assert not any(
                self.job(known)["state"] not in CLOSED
                for known in self.jobs.values()
                if known.tenant == name
            )
            assert self.call("PUT", path, json={"share": {}}).status_code == 200

    @rule(tenant=tenants)
    def revoke(self, tenant: str) -> None:
        made = self.call("POST", "/v1/tokens", json={"tenant": tenant}).json()
        assert self.call("DELETE", f"/v1/tokens/{made['id']}").status_code == 204
        self.revoked.append(made["token"])

    @rule(slots=st.integers(1, 4))
    def time_goes_on(self, slots: int) -> None:
        self.clock.advance(slots * 3_600)

        def has_caught_up() -> bool:
            self.call("POST", "/v1/quote", json=body("wakes it", "red", 0))
            service = self.call("GET", "/v1/service").json()
            return bool(service["next_slot_begins"] > service["now"])

        wait_until(has_caught_up)

    @precondition(lambda self: self.jobs)
    @rule()
    def restart(self) -> None:
        before = self.everything()
        self.stack.close()
        self.open()
        assert self.everything() == before

    # ------------------------------------------------------------------ what must be true

    @invariant()
    def all_jobs_are_there_and_no_other(self) -> None:
        found: list[dict[str, Any]] = []
        cursor = None
        every = {known.id: (name, known) for (_, name), known in self.jobs.items()}
        every |= {known.id: (name, known) for name, known in self.former}
        for _ in range(len(every) + 1):
            query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
            page = self.call("GET", "/v1/jobs", params=query).json()
            found += page["jobs"]
            if (cursor := page["next"]) is None:
                break
        assert cursor is None
        assert {one["id"] for one in found} == every.keys()
        assert [one["id"] for one in found] == sorted({one["id"] for one in found}, reverse=True)
        for one in found:
            name, known = every[one["id"]]
            assert (one["name"], one["tenant"], one["submitted"]) == (
                name,
                known.tenant,
                known.submitted,
            )
            if known.last is not None:  # closed jobs stay as they are
                assert one == known.last
            elif one["state"] in CLOSED:
                known.last = one
            self.true_of(one)

    def true_of(self, one: dict[str, Any]) -> None:
        body = self.call("GET", f"/v1/jobs/id:{one['id']}/explain").json()
        history = [event for event in body["events"] if "promise" in event["data"]]
        promises = [event["data"]["promise"] for event in history if event["kind"] != "clock"]
        assert one["promise_slot"] == (promises[-1] if promises else None), history
        if one["state"] == "finished":
            assert one["progress"] == one["required"]
        if one["state"] in CLOSED - {"finished"}:
            assert not one["servers"]

    @invariant()
    def no_server_holds_more_than_it_has(self) -> None:
        response_body = self.call("GET", "/v1/servers").json()["servers"]
        assert {server["name"] for server in response_body} == self.servers
        for server in response_body:
            assert server["state"] == self.closed.get(server["name"], "up")
            assert sum(2 * entry["workers"] for entry in server["jobs"]) <= 4, server
            for entry in server["jobs"]:
                body = self.call("GET", f"/v1/jobs/id:{entry['job_id']}").json()
                assert body["state"] in {"running", "admitted", "resizing"}

    @invariant()
    def tenants_see_their_own(self) -> None:
        for tenant, token in self.tokens.items():
            body = self.call("GET", "/v1/jobs", token=token, params={"limit": 1_000}).json()
            own = {name for owner, name in self.jobs if owner == tenant}
            assert {job["name"] for job in body["jobs"]} == own

    @invariant()
    def what_was_revoked_lets_nobody_in(self) -> None:
        for token in self.revoked:
            assert self.call("GET", "/v1/jobs", token=token).status_code == 401


def _quoted(name: str) -> str:
    return quote(name, safe="")
