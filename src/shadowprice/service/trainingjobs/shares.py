"""Tenants' shares, as the namespaces of a Kubernetes cluster declare them.

A share guarantees resources to a tenant's promises. A ResourceQuota is only an upper limit, which
the API server enforces. So a namespace declares its share with the annotation
``shadowprice.io/share``, written as in a cluster file. A ResourceQuota with the label
``shadowprice.io/share=true`` also declares its amounts as a share.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core import bounds
from shadowprice.core.amounts import EXAMPLE_AMOUNTS, format_amount
from shadowprice.core.cluster import Cluster, Tenant
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.specs.cluster import TenantSpec
from shadowprice.core.specs.faults import validate
from shadowprice.core.wording import quote_for_display
from shadowprice.core.yaml_values import parse_yaml
from shadowprice.executors.kubernetes.views import parse_quantity, units_per_quantity
from shadowprice.inputs.text import check_yaml_size
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.names import SHARE, TENANT_LABEL
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.operations import update_tenants
from shadowprice.service.store.lookups import stored_value
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

_KEY: Final = "namespace-shares"  # key of the declared shares in the store, as last applied
DEBOUNCE_SECONDS: Final = 0.2  # for which changes are collected, to be applied together
RETRY_SECONDS: Final = 10.0  # before a retry of refused shares, because nodes may have joined
REASON: Final = "ShareNotTaken"  # of the Kubernetes event about a refused share
_MAX_TEXT_CHARS: Final = 10_000  # of an annotation
_REQUESTS: Final = "requests."  # prefixes of the names in a quota's `spec.hard`
_LIMITS: Final = "limits."
_MAX_SHARE: Final = 2**62  # so that sums fit in 64 bits


@dataclass(frozen=True, slots=True)
class ShareStatement:
    """A Namespace or ResourceQuota, which may declare a share of its tenant."""

    kind: str
    namespace: str
    name: str
    uid: str
    text: str | None = None  # share annotation of a namespace
    hard: tuple[tuple[str, str], ...] = ()  # ``spec.hard`` of a quota, sorted
    tenant: str = ""  # tenant of a namespace's jobs; empty for a quota

    def reference(self) -> dict[str, Any]:
        """Return the object reference for an event."""
        return {
            "apiVersion": "v1",
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }


def share_from_namespace(item: Mapping[str, Any]) -> ShareStatement:
    """Parse a namespace."""
    metadata = item["metadata"]
    name = str(metadata["name"])
    text = (metadata.get("annotations") or {}).get(SHARE)
    return ShareStatement(
        "Namespace",
        name,
        name,
        str(metadata.get("uid", "")),
        text=None if text is None else str(text),
        tenant=str((metadata.get("labels") or {}).get(TENANT_LABEL) or name),
    )


def share_from_quota(item: Mapping[str, Any]) -> ShareStatement:
    """Parse a quota."""
    metadata = item["metadata"]
    hard = (item.get("spec") or {}).get("hard") or {}
    return ShareStatement(
        "ResourceQuota",
        str(metadata["namespace"]),
        str(metadata["name"]),
        str(metadata.get("uid", "")),
        hard=tuple(sorted((str(name), str(amount)) for name, amount in hard.items())),
    )


def read_share(stated: ShareStatement, cluster: Cluster) -> dict[str, int]:
    """Return a declared share in the cluster's units; raise `InputError` if invalid."""
    read = _share_from_hard if stated.text is None else _share_from_annotation
    return read(stated, cluster)


def _share_from_annotation(stated: ShareStatement, cluster: Cluster) -> dict[str, int]:
    text = stated.text or ""
    hint = "write it as in a cluster file: {gpu: 8, memory: 64 GiB}"
    try:
        if len(text) > _MAX_TEXT_CHARS:
            raise ValueError("it is too long")
        check_yaml_size(Path(SHARE), text)
        amounts = parse_yaml(text)
    except (InputError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"{SHARE} {quote_for_display(text[:80])} cannot be read; {hint}"
        ) from error
    if not isinstance(amounts, Mapping):
        raise InputError(f"{SHARE} {quote_for_display(text[:80])} names no amounts; {hint}")
    spec, faults = validate(TenantSpec, {"name": "tenant", "share": dict(amounts)}, SHARE)
    if spec is None:
        message = "; ".join(str(fault).replace(f"{SHARE}: share", SHARE) for fault in faults[:3])
        raise InputError(message)
    share = {}
    for name, amount in spec.share.items():
        resource = cluster.find_resource(name)
        if resource is None:
            unknown, known = quote_for_display(name), ", ".join(cluster.resources)
            raise InputError(f"{SHARE}: no server has {unknown}; counted here: {known}")
        kind = cluster.dimensions[cluster.column[resource]]
        if amount.value and amount.dimension is not kind:
            example = EXAMPLE_AMOUNTS[kind]
            raise InputError(f"{SHARE}: {name} is in another unit; write it like {example}")
        share[resource] = amount.value
    return share


def _share_from_hard(stated: ShareStatement, cluster: Cluster) -> dict[str, int]:
    """Return the share that a quota declares; skip amounts of resources that no server has."""
    amounts: dict[str, int] = {}
    for name, text in stated.hard:
        if not name.startswith(_LIMITS):
            # `cpu` means `requests.cpu`. If a quota has both, the lower amount applies.
            bare = name.removeprefix(_REQUESTS)
            amount = parse_quantity(text, units_per_quantity(bare))
            amounts[bare] = min(amount, amounts.get(bare, amount))
    share: dict[str, int] = {}
    for bare, amount in amounts.items():
        is_gpu = bare.endswith("/gpu") and bare not in cluster.column
        resource = cluster.find_resource("gpu" if is_gpu else bare)
        if resource is not None:
            share[resource] = share.get(resource, 0) + amount
    if not share:
        raise InputError(
            f"quota {stated.name} limits no resource of the servers; "
            "add requests.cpu, requests.memory or requests.nvidia.com/gpu to its spec.hard"
        )
    return share


@dataclass(frozen=True, slots=True)
class DesiredShares:
    """The combined declarations of all namespaces and quotas."""

    shares: Mapping[str, Mapping[str, int]]  # by tenant; empty for a tenant that only has jobs
    wrong: tuple[tuple[ShareStatement, str], ...] = ()  # refused declarations, with the reasons


def desired_shares(
    namespaces: Mapping[str, ShareStatement],
    quotas: Iterable[ShareStatement],
    *,
    file: Cluster,
    cluster: Cluster,
    also: Iterable[str] = (),
) -> DesiredShares:
    """Combine the declarations of ``namespaces``, by name, and of ``quotas``.

    Several declarations of one tenant add up. The shares of the cluster file (``file``) take
    precedence; if it names tenants, declarations of other tenants are refused. ``also`` are tenants
    that have jobs. They get an empty share, because jobs of unknown tenants are refused. The total
    isn't checked here; see `excess_message`.
    """
    file_shares = {tenant.name: tenant.share for tenant in file.tenants}
    shares: dict[str, dict[str, int]] = {}
    wrong: list[tuple[ShareStatement, str]] = []
    declaring = [source for source in namespaces.values() if source.text is not None]
    accepted: list[ShareStatement] = []
    for source in [*declaring, *quotas]:
        owner = namespaces.get(source.namespace)
        if owner is None:
            continue  # the namespace is being deleted, or isn't listed yet
        try:
            share = read_share(source, cluster)
            if file_shares and owner.tenant not in file_shares:
                raise InputError(
                    f"the cluster file names tenants, and {owner.tenant} is not one of them"
                )
            if file_shares.get(owner.tenant):
                raise InputError(f"the cluster file already sets a share of {owner.tenant}")
        except InputError as error:
            wrong.append((source, str(error)))
            continue
        total = shares.setdefault(owner.tenant, {})
        for name, amount in share.items():
            total[name] = min(total.get(name, 0) + amount, _MAX_SHARE)
        accepted.append(source)
    if len(shares) > int(bounds.TENANTS.maximum):
        wrong += [
            (source, f"more than {bounds.TENANTS.maximum:,} tenants have shares")
            for source in accepted
        ]
        return DesiredShares({}, tuple(wrong))
    if shares and not file_shares:
        for name in also:
            shares.setdefault(name, {})
    return DesiredShares(shares, tuple(wrong))


def excess_message(shares: Mapping[str, Mapping[str, int]], cluster: Cluster) -> str:
    """Return a message if all shares together exceed the servers' capacity, or an empty text.

    Then no share is applied, because none of them is too large by itself.
    """
    all_shares = {tenant.name: tenant.share for tenant in cluster.tenants} | dict(shares)
    for column, name in enumerate(cluster.resources):
        total = sum(cluster.capacity[:, column].tolist())
        declared = sum(share.get(name, 0) for share in all_shares.values())
        if declared > total:
            kind = cluster.dimensions[column]
            return (
                f"shares of {name} add up to {format_amount(declared, kind)}, and the servers hold "
                f"{format_amount(total, kind)}: all shares are unchanged"
            )
    return ""


@operation
def sync_shares(
    batch: Batch,
    shares: Mapping[str, Mapping[str, int]],
    file: tuple[Tenant, ...] = (),
    *,
    is_start: bool = False,
) -> bool:
    """Apply the declared shares of tenants; return False if they are unchanged.

    A share that an operator set is kept until the tenant's namespace changes its declaration. A
    tenant without a declared share gets its share in the cluster ``file``. At a start
    (``is_start``), the file may have changed, so unchanged declarations are applied too.
    """
    text = stored_value(batch.connection, _KEY)
    stored = json.loads(text or '{"shares": {}, "others": []}')
    previous: dict[str, dict[str, int]] = stored["shares"]
    declared = {name: dict(share) for name, share in shares.items()}
    if previous == declared and not (is_start and declared):
        return False
    tenants_by_name = {tenant.name: tenant for tenant in batch.engine.cluster.tenants}
    in_file = {tenant.name: tenant for tenant in file}
    for name in {*previous, *stored["others"]} - declared.keys():
        if name in in_file:
            tenants_by_name[name] = in_file[name]
        else:
            tenants_by_name.pop(name, None)
    for name, share in declared.items():
        if is_start or name not in tenants_by_name or share != previous.get(name):
            tenants_by_name[name] = Tenant(name, share)
    others = []
    if tenants_by_name:  # tenants with open jobs must stay known, even without a share
        for record in batch.engine.open_jobs.values():
            name = record.job.tenant
            if name is not None and name not in tenants_by_name:
                tenants_by_name[name] = Tenant(name)
                others.append(name)
    tenants = tuple(tenants_by_name.values())
    if tenants != batch.engine.cluster.tenants:
        update_tenants(tenants).perform(batch)
    new_text = json.dumps({"shares": declared, "others": others})
    batch.set_value(_KEY, new_text)
    return True


class NamespaceShares:
    """Applies the tenants and shares that namespaces and labelled quotas declare.

    ``file`` is the cluster of the cluster file. ``warn`` emits a Kubernetes event about an object,
    given its reference, a reason and a text. ``may_write`` raises if this instance no longer leads.
    ``with_jobs`` returns the namespaces that have TrainingJobs. ``changed`` is called with a
    namespace whose tenant changed.
    """

    def __init__(
        self,
        connection: ApiClient,
        writer: Writer,
        file: Cluster,
        *,
        warn: Callable[[Mapping[str, Any], str, str], None],
        may_write: Callable[[str, str], None],
        with_jobs: Callable[[], Iterable[str]],
        changed: Callable[[str], None],
    ) -> None:
        self._writer = writer
        self._file = file
        self._warn = warn
        self._may_write = may_write
        self._with_jobs = with_jobs
        self._changed = changed
        self._namespaces: Informer[ShareStatement] = Informer(
            connection, "/api/v1/namespaces", share_from_namespace, self._namespace_changed
        )
        self._quotas: Informer[ShareStatement] = Informer(
            connection,
            "/api/v1/resourcequotas",
            share_from_quota,
            lambda *_: self._wake.set(),
            {"labelSelector": f"{SHARE}=true"},
        )
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()  # one `apply` at a time
        self._warned: set[tuple[str, str]] = set()  # UIDs and reasons
        self._has_applied = False  # whether shares were applied since this instance started

    async def start(self) -> None:
        """Start the watches; raise `ApiError` if namespaces (not quotas) may not be read."""
        await self._namespaces.start()
        try:
            await self._quotas.start()
        except ApiError as error:
            if error.status != 403:
                raise
            log.warning("ResourceQuotas don't become shares, because they can't be read: %s", error)

    async def close(self) -> None:
        """Stop the watches."""
        await self._namespaces.close()
        await self._quotas.close()

    def tenant_of(self, namespace: str) -> str:
        """Return the tenant of a namespace."""
        declaration = self._namespaces.items.get(namespace)
        return namespace if declaration is None else declaration.tenant

    def _namespace_changed(
        self, name: str, old: ShareStatement | None, new: ShareStatement | None
    ) -> None:
        self._wake.set()
        if (old and old.tenant) != (new and new.tenant):
            self._changed(name)

    async def run(self) -> None:
        """Apply shares whenever they change, until cancelled; retry refused ones."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            self._wake.clear()
            applied = False
            try:
                applied = await self.apply()
            finally:
                if not applied:
                    asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake.set)

    async def apply(self) -> bool:
        """Apply the current declarations; return False if the shares were refused."""
        async with self._lock:
            cluster = self._writer.published.servers.cluster
            namespaces = self._namespaces.items
            combined = desired_shares(
                namespaces,
                self._quotas.items.values(),
                file=self._file,
                cluster=cluster,
                also=[self.tenant_of(name) for name in self._with_jobs()],
            )
            faults = list(combined.wrong)
            reason = excess_message(combined.shares, cluster)
            if not reason:
                try:
                    self._may_write("shares", "")
                    await self._writer.do(
                        sync_shares(
                            combined.shares, self._file.tenants, is_start=not self._has_applied
                        )
                    )
                    self._has_applied = True
                except ShadowpriceError as error:
                    reason = str(error)
                except Exception as error:  # jobs must be reconciled all the same
                    self._writer.metrics.failures.labels("trainingjobs").inc()
                    log.exception("failed to apply the shares of namespaces")
                    reason = f"failed to apply them: {type(error).__name__}"
            if reason:
                declaring = [source for source in namespaces.values() if source.text is not None]
                refused_uids = {source.uid for source, _ in faults}
                faults += [
                    (source, reason)
                    for source in [*declaring, *self._quotas.items.values()]
                    if source.uid not in refused_uids
                ]
            self._warn_once(faults)
            return not reason

    def _warn_once(self, faults: list[tuple[ShareStatement, str]]) -> None:
        current = {(source.uid, text) for source, text in faults}
        for source, text in faults:
            if (source.uid, text) not in self._warned:
                log.warning("the share of %s %s: %s", source.kind.lower(), source.name, text)
                self._warn(source.reference(), REASON, text)
        self._warned = current
