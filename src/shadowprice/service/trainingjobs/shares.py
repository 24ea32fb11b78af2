"""Shares of tenants as a cluster's namespaces state them.

A share is what its owner's promises may count on whatever others do; a ceiling is what nobody gets
beyond. A ResourceQuota is a ceiling, which the API server holds. So a share is stated in words of
its own: the annotation ``shadowprice.io/share`` of a namespace, written as in a cluster file; or a
ResourceQuota that the label ``shadowprice.io/share=true`` says to be a share too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from sqlalchemy import select

from shadowprice.core import bounds
from shadowprice.core.amounts import format_amount
from shadowprice.core.cluster import Cluster, Tenant
from shadowprice.core.errors import InputError
from shadowprice.core.specs.cluster import TenantSpec
from shadowprice.core.specs.faults import validate
from shadowprice.core.wording import shown
from shadowprice.executors.kubernetes.quantities import unit_of, units
from shadowprice.kubernetes.names import SHARE, TENANT_LABEL
from shadowprice.service.store import tables
from shadowprice.service.truth.batch import Batch
from shadowprice.service.truth.operations import ChangeTenants

_KEY: Final = "namespace-shares"
"""What the store keeps: the shares that namespaces stated when they were last followed."""

_MOST_TEXT: Final = 10_000
_REQUESTS: Final = "requests."
_NO_AMOUNTS: Final = frozenset({"pods", "services", "secrets", "configmaps"})
"""Quotas of numbers of objects, which no server has."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What one object says of its tenant's share.

    Parameters
    ----------
    kind, namespace, name, uid : str
        The object: a Namespace or a ResourceQuota.
    version : str
        Its ``resourceVersion``.
    text : str or None
        The annotation of a namespace.
    hard : mapping of str to str
        What a quota lays down.
    tenant : str
        Of a namespace: who its jobs belong to.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""
    text: str | None = None
    hard: tuple[tuple[str, str], ...] = ()
    tenant: str = ""

    def reference(self) -> dict[str, Any]:
        """Return what names it in an event."""
        return {
            "apiVersion": "v1",
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.version,
        }


def of_namespace(item: Mapping[str, Any]) -> Stated:
    """Return what a namespace says, and whose it is."""
    told = item["metadata"]
    name = str(told["name"])
    text = (told.get("annotations") or {}).get(SHARE)
    return Stated(
        "Namespace",
        name,
        name,
        str(told.get("uid", "")),
        # Others write annotations of theirs: only what is read here makes it another one.
        text=None if text is None else str(text),
        tenant=str((told.get("labels") or {}).get(TENANT_LABEL) or name),
    )


def of_quota(item: Mapping[str, Any]) -> Stated:
    """Return what a quota says."""
    told = item["metadata"]
    hard = (item.get("spec") or {}).get("hard") or {}
    return Stated(
        "ResourceQuota",
        str(told["namespace"]),
        str(told["name"]),
        str(told.get("uid", "")),
        hard=tuple(sorted((str(name), str(amount)) for name, amount in hard.items())),
    )


class WrongShareError(InputError):
    """What is stated is no share."""


def read_share(stated: Stated, cluster: Cluster) -> dict[str, int]:
    """Return a share in the units that a cluster counts.

    Raises
    ------
    WrongShareError
        If it is none, or of a resource that is not counted.
    """
    return _of_text(stated, cluster) if stated.text is not None else _of_hard(stated, cluster)


def _of_text(stated: Stated, cluster: Cluster) -> dict[str, int]:
    text = stated.text or ""
    mend = "write it as in a cluster file: {gpu: 8, memory: 64 GiB}"
    try:
        if len(text) > _MOST_TEXT:
            raise ValueError("it is too long")
        found = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise WrongShareError(f"{SHARE} {shown(text[:80])} cannot be read; {mend}") from error
    if not isinstance(found, Mapping):
        raise WrongShareError(f"{SHARE} {shown(text[:80])} names no amounts; {mend}")
    spec, faults = validate(TenantSpec, {"name": "tenant", "share": dict(found)}, SHARE)
    if spec is None:
        told = "; ".join(str(one).replace(f"{SHARE}: share", SHARE) for one in faults[:3])
        raise WrongShareError(told)
    share = {}
    for name, amount in spec.share.items():
        _check_counted(name, cluster)
        kind = cluster.dimensions[cluster.column[name]]
        if amount.value and amount.dimension is not kind:
            like = format_amount(8 * 10**9, kind)
            raise WrongShareError(f"{SHARE}: {name} is in another unit; write it like {like}")
        share[name] = amount.value
    return share


def _of_hard(stated: Stated, cluster: Cluster) -> dict[str, int]:
    share = {}
    for name, amount in stated.hard:
        bare = name.removeprefix(_REQUESTS)
        if bare in _NO_AMOUNTS or "/" in bare.partition(".")[0] or bare.startswith("limits."):
            continue
        if bare not in cluster.column and bare.endswith("/gpu") and "gpu" in cluster.column:
            bare = "gpu"
        _check_counted(bare, cluster)
        share[bare] = units(amount, unit_of(bare))
    if not share:
        raise WrongShareError(
            f"quota {stated.name} says nothing of what servers have; "
            "add requests.cpu, requests.memory or requests.nvidia.com/gpu to its spec.hard"
        )
    return share


def _check_counted(name: str, cluster: Cluster) -> None:
    if name not in cluster.column:
        known = ", ".join(cluster.resources)
        raise WrongShareError(f"{SHARE}: no server has {shown(name)}; counted here: {known}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What all objects together come to.

    Parameters
    ----------
    shares : mapping of str to mapping
        Share by tenant; empty for those that are to be known and own nothing.
    wrong : tuple of (Stated, str)
        What is not taken, each with why.
    """

    shares: Mapping[str, Mapping[str, int]]
    wrong: tuple[tuple[Stated, str], ...] = ()


def wanted(
    namespaces: Mapping[str, Stated],
    quotas: Iterable[Stated],
    *,
    file: Cluster,
    cluster: Cluster,
    also: Iterable[str] = (),
) -> Wanted:
    """Return what namespaces and quotas come to.

    What several say of one tenant adds up. Shares are taken all together or not at all where they
    add up to more than the servers hold: none of them alone is too much.

    Parameters
    ----------
    namespaces : mapping of str to Stated
        All namespaces by name.
    quotas : iterable of Stated
        Those that are shares.
    file : Cluster
        The cluster file's: a tenant that it gives a share has that one, and where it names
        tenants there are no others.
    cluster : Cluster
        As it is now.
    also : iterable of str
        Tenants that have jobs: known beside those with a share, or theirs would be refused.
    """
    own = {tenant.name: tenant.share for tenant in file.tenants}
    shares: dict[str, dict[str, int]] = {}
    wrong: list[tuple[Stated, str]] = []
    stating = [one for one in namespaces.values() if one.text is not None]
    taken: list[Stated] = []
    for one in [*stating, *quotas]:
        home = namespaces.get(one.namespace)
        if home is None:
            continue  # its namespace is just going, or not yet seen
        try:
            share = read_share(one, cluster)
            if own and home.tenant not in own:
                raise WrongShareError(
                    f"the cluster file names tenants, and {home.tenant} is none of them"
                )
            if own.get(home.tenant):
                raise WrongShareError(f"the cluster file gives {home.tenant} its share already")
        except InputError as error:
            wrong.append((one, str(error)))
            continue
        total = shares.setdefault(home.tenant, {})
        for name, amount in share.items():
            total[name] = min(total.get(name, 0) + amount, 2**62)
        taken.append(one)
    if len(shares) > int(bounds.TENANTS.most):
        wrong += [(one, f"more than {bounds.TENANTS.most:,} tenants have shares") for one in taken]
        return Wanted({}, tuple(wrong))
    if shares and not own:
        for name in also:
            shares.setdefault(name, {})
    return Wanted(shares, tuple(wrong))


def excess(shares: Mapping[str, Mapping[str, int]], cluster: Cluster) -> str:
    """Return what is more than the servers hold, empty where nothing is.

    Shares that operators or the cluster file gave to others count as well.
    """
    owned = {one.name: one.share for one in cluster.tenants} | dict(shares)
    for column, name in enumerate(cluster.resources):
        total = sum(cluster.capacity[:, column].tolist())
        given = sum(share.get(name, 0) for share in owned.values())
        if given > total:
            kind = cluster.dimensions[column]
            return (
                f"shares of {name} add up to {format_amount(given, kind)}, and the servers hold "
                f"{format_amount(total, kind)}: all shares stay as they were"
            )
    return ""


@dataclass(frozen=True, slots=True)
class FollowShares:
    """Namespaces state other shares than when they were last followed.

    What operators set of a tenant stays until its namespace says something else than before.

    Parameters
    ----------
    shares : mapping of str to mapping of str to int
        Share by tenant.
    anew : bool
        Whether all of it is set, whatever was set meanwhile: the cluster file may be another.
    """

    shares: Mapping[str, Mapping[str, int]]
    anew: bool = False

    def perform(self, batch: Batch) -> bool:
        """Let the engine follow; return whether anything changed."""
        table = tables.meta
        text = batch.connection.execute(
            select(table.c.value).where(table.c.key == _KEY)
        ).scalar_one_or_none()
        kept = json.loads(text or '{"shares": {}, "others": []}')
        before: dict[str, dict[str, int]] = kept["shares"]
        after = {name: dict(share) for name, share in self.shares.items()}
        if before == after and not (self.anew and after):
            return False
        now = {tenant.name: tenant for tenant in batch.engine.cluster.tenants}
        for name in {*before, *kept["others"]} - after.keys():
            now.pop(name, None)
        for name, share in after.items():
            if self.anew or name not in now or share != before.get(name):
                now[name] = Tenant(name, share)
        others = []
        if now:  # whoever has jobs is somebody, though it owns nothing
            for record in batch.engine.open_jobs.values():
                name = record.job.tenant
                if name is not None and name not in now:
                    now[name] = Tenant(name)
                    others.append(name)
        tenants = tuple(now.values())
        if tenants != batch.engine.cluster.tenants:
            ChangeTenants(tenants).perform(batch)
        written = json.dumps({"shares": after, "others": others})
        batch.put(_KEY, written)
        return True
