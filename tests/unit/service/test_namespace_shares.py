"""Shares of namespaces: parsing, sums, and the resulting tenants."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.specs.cluster import ClusterSpec
from shadowprice.service.trainingjobs.shares import (
    ShareStatement,
    desired_shares,
    excess_message,
    read_share,
    share_from_namespace,
    share_from_quota,
    sync_shares,
)
from tests.support.services import RunningService, job, run_service


def cluster(*tenants: dict[str, Any]) -> Cluster:
    servers = [{"name": "g", "count": 4, "capacity": {"gpu": 8, "cpu": 64, "memory": "256 GiB"}}]
    spec = ClusterSpec.model_validate(
        {"slot": "1h", "horizon": 50, "servers": servers, "tenants": list(tenants)}
    )
    return spec.resolve()


def space(name: str, share: str | None = None, tenant: str | None = None) -> ShareStatement:
    meta: dict[str, Any] = {"name": name, "uid": f"u-{name}"}
    meta["annotations"] = {} if share is None else {"shadowprice.io/share": share}
    meta["labels"] = {} if tenant is None else {"shadowprice.io/tenant": tenant}
    return share_from_namespace({"metadata": meta})


def quota(namespace: str, **hard: str) -> ShareStatement:
    return quota_of({name.replace("_", "."): amount for name, amount in hard.items()}, namespace)


def quota_of(hard: dict[str, str], namespace: str = "a") -> ShareStatement:
    meta = {"name": "q", "namespace": namespace, "uid": "u-q"}
    return share_from_quota({"metadata": meta, "spec": {"hard": hard}})


@pytest.mark.parametrize(
    ("stated", "share"),
    [
        (space("a", "{gpu: 8, memory: 64 GiB}"), {"gpu": 8000, "memory": 64 << 30}),
        (space("a", "gpu: 0.5\ncpu: 4"), {"gpu": 500, "cpu": 4000}),
        (space("a", "{}"), {}),
        (
            quota("a", requests_cpu="1500m", requests_memory="2Gi", pods="4"),
            {"cpu": 1500, "memory": 2 << 30},
        ),
        (
            quota_of({"requests.nvidia.com/gpu": "4", "limits.cpu": "9", "count/jobs.batch": "7"}),
            {"gpu": 4000},
        ),
        (
            quota_of({"requests.nvidia.com/gpu": "4", "requests.amd.com/gpu": "2"}),
            {"gpu": 6000},
        ),
        (quota_of({"cpu": "2", "requests.cpu": "3"}), {"cpu": 2000}),  # two names of one limit
        (
            quota_of(
                {
                    "requests.cpu": "3",
                    "persistentvolumeclaims": "5",
                    "requests.storage": "1Ti",
                    "gold.storageclass.storage.k8s.io/requests.storage": "1Ti",
                    "requests.ephemeral-storage": "9Gi",
                    "services.loadbalancers": "1",
                }
            ),
            {"cpu": 3000},
        ),
    ],
)
def test_a_share_is_read_in_the_units_of_the_cluster(
    stated: ShareStatement, share: dict[str, int]
) -> None:
    assert read_share(stated, cluster()) == share


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (space("a", "8"), "names no amounts; write it as in a cluster file"),
        (space("a", "{gpu: ["), "cannot be read; write it as in a cluster file"),
        (space("a", "{gpu: many}"), "shadowprice.io/share.gpu"),
        (space("a", "{gpu: -1}"), "shadowprice.io/share.gpu"),
        (space("a", "{gpus: 8}"), "no server has 'gpus'; counted here: gpu, cpu, memory"),
        (space("a", "{gpu: 8 GiB}"), "gpu is in another unit; write it like 8"),
        (space("a", "[" * 9999), "cannot be read"),
        (space("a", "{gpu: !!bool maybe}"), "cannot be read"),
        (space("a", "{gpu: !!float ''}"), "cannot be read"),
        (space("a", "{gpu: &a [*a]}"), "cannot be read"),
        (space("a", "x" * 99_999), "cannot be read"),
        (quota("a", pods="4"), "quota q limits no resource of the servers; add requests.cpu"),
        (quota("a", requests_storage="9Gi"), "quota q limits no resource of the servers"),
    ],
)
def test_invalid_share_is_reported_in_one_line_with_a_hint(
    stated: ShareStatement, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_share(stated, cluster())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_shares_of_one_tenant_add_up_without_the_invalid_ones() -> None:
    spaces = [space("a", "{gpu: 2}", "one"), space("b", "{gpu: 3, cpu: 1}", "one"),
              space("c", "{gpus: 1}"), space("d"), space("e", "{gpu: 1}")]  # fmt: skip
    by_name = {space.name: space for space in spaces}
    quotas = [quota("d", requests_cpu="2"), quota("gone", requests_cpu="2")]
    result = desired_shares(by_name, quotas, file=cluster(), cluster=cluster(), also=["d", "f"])
    assert result.shares == {
        "one": {"gpu": 5000, "cpu": 1000}, "d": {"cpu": 2000}, "e": {"gpu": 1000}, "f": {},
    }  # fmt: skip
    assert [stated.name for stated, _ in result.wrong] == ["c"]
    # The owner of jobs without a share is a tenant only if others have one.
    assert desired_shares({}, [], file=cluster(), cluster=cluster(), also=["f"]).shares == {}


def test_cluster_file_takes_precedence() -> None:
    file = cluster({"name": "a", "share": {"gpu": 1}}, {"name": "b"})
    spaces = {name: space(name, "{gpu: 2}") for name in "abc"}
    result = desired_shares(spaces, [], file=file, cluster=file)
    assert result.shares == {"b": {"gpu": 2000}}
    assert {stated.name: text for stated, text in result.wrong} == {
        "a": "the cluster file already sets a share of a",
        "c": "the cluster file names tenants, and c is not one of them",
    }


def test_shares_are_limited_to_the_capacity() -> None:
    now = cluster({"name": "file", "share": {"gpu": 20}})
    assert excess_message({"a": {"gpu": 12_000}}, now) == ""
    assert excess_message({"a": {"gpu": 12_001}}, now) == (
        "shares of gpu add up to 32.001, and the servers hold 32: all shares are unchanged"
    )


def shares(service: RunningService) -> dict[str, dict[str, str]]:
    body = service.client.get("/v1/tenants").json()["tenants"]
    return {entry["name"]: entry["share"] for entry in body}


def follow(service: RunningService, *, is_start: bool = False, **given: dict[str, int]) -> bool:
    writer = service.service.require_writer()
    loop: asyncio.AbstractEventLoop = writer._wake._loop  # type: ignore[attr-defined]  # asyncio's
    change = writer.do(sync_shares(given, service.service.cluster.tenants, is_start=is_start))
    return bool(asyncio.run_coroutine_threadsafe(change, loop).result(60))


def test_changed_shares_update_tenants_except_operator_settings(tmp_path: Path) -> None:
    with run_service(tmp_path) as service:
        assert service.client.post("/v1/jobs", json=job("of-nobody")).is_success
        assert service.client.post("/v1/jobs", json=job("of-x", tenant="x")).is_success
        assert follow(service, a={"gpu": 4000}, b={"gpu": 2000})
        assert shares(service) == {"a": {"gpu": "4"}, "b": {"gpu": "2"}, "x": {}}
        assert not follow(service, a={"gpu": 4000}, b={"gpu": 2000})
        # An operator's setting holds until the namespace states another one.
        assert service.client.put("/v1/tenants/a", json={"share": {"gpu": 6}}).is_success
        assert service.client.put("/v1/tenants/own", json={"share": {"gpu": 1}}).is_success
        assert follow(service, a={"gpu": 4000})
        assert shares(service) == {"a": {"gpu": "6"}, "own": {"gpu": "1"}, "x": {}}
        assert follow(service, a={"gpu": 4000}, is_start=True)
        assert shares(service)["a"] == {"gpu": "4"}
        assert service.client.delete("/v1/tenants/own").is_success
        # No namespace has a share: everything is unlimited again, for any tenant.
        assert follow(service)
        assert service.service.require_writer().published.servers.cluster.tenants == ()
        assert service.client.post("/v1/jobs", json=job("of-y", tenant="y")).is_success


def test_a_tenant_of_the_cluster_file_stays_without_the_share_of_its_namespace(
    tmp_path: Path,
) -> None:
    servers = [{"name": "g", "count": 4, "capacity": {"gpu": 8, "cpu": 64}}]
    tenants = [{"name": "a"}, {"name": "b", "share": {"gpu": 1}}]
    file = {"slot": "1h", "horizon": 50, "servers": servers, "tenants": tenants}
    with run_service(tmp_path, cluster=file) as service:
        assert follow(service, a={"gpu": 4000})
        assert shares(service) == {"a": {"gpu": "4"}, "b": {"gpu": "1"}}
        assert follow(service)
        assert shares(service) == {"a": {}, "b": {"gpu": "1"}}
        assert service.client.post("/v1/jobs", json=job("of-a", tenant="a")).is_success


def test_namespace_shares_survive_a_restart_and_a_new_cluster_file(tmp_path: Path) -> None:
    with run_service(tmp_path) as service:
        follow(service, a={"gpu": 4000})
    servers = [{"name": "g", "count": 4, "capacity": {"gpu": 8, "cpu": 64}}]
    file = {"slot": "1h", "horizon": 50, "servers": servers, "tenants": [{"name": "a"}]}
    with run_service(tmp_path, cluster=file) as service:
        assert shares(service) == {"a": {}}  # the file's change came first
        assert follow(service, a={"gpu": 4000}, is_start=True)
        assert shares(service) == {"a": {"gpu": "4"}}
    assert yaml.safe_load((tmp_path / "cluster.yaml").read_text())["tenants"] == [{"name": "a"}]
