"""Tenants' accounts of a run: earnings, payments and loans of capacity.

They are computed from the run's files alone: payments from ``payments.jsonl``, utilities from
``jobs.parquet``, used places from ``allocations.parquet`` and shares from ``run.json``. A place is
the capacity for one worker or one parameter server. Sections and equations are those of Astraea's
paper (IEEE TC 72(3), 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import pvariance
from typing import Final

import polars as pl

from shadowprice.core.errors import Fault, InputError
from shadowprice.results.columns import slot_blocks, typed_columns
from shadowprice.results.run_directory import Fields, RunData

MICRO: Final = 1_000_000
"""Units of account in one unit of utility."""

PAYMENT_KEYS: Final = frozenset({"job", "slot", "payer", "payee"})
"""Keys of a line of ``payments.jsonl`` that aren't kinds of capacity with their amounts."""


@dataclass(frozen=True, slots=True)
class TenantAccount:
    """One tenant's account of a run.

    Parameters
    ----------
    share : mapping of str to int
        Places that the tenant owns, by type.
    jobs, finished : int
        Submitted and completed jobs.
    earned : float
        Utility of the completed jobs, counted from their arrival.
    earned_own : float
        The part of ``earned`` from jobs that stayed within the tenant's own share.
    paid, received, to_itself : int
        Millionths of a unit of utility: paid by the tenant's jobs, received by the tenant, and the
        part of both that the jobs paid for the tenant's own unused share.
    lent, borrowed : mapping of str to float
        Place-slots by type: the tenant's unused share that others used, and the share of others
        that the tenant's jobs used. Loans of the tenant to itself are excluded.
    fairness : float or None
        Revenue fairness ratio (section 5.1): the tenant's share of all revenue, over the mean of
        its shares of workers and of parameter servers. None if it owns nothing or the run earned
        nothing.
    """

    tenant: str
    share: Mapping[str, int]
    jobs: int
    finished: int
    earned: float
    earned_own: float
    paid: int
    received: int
    to_itself: int
    lent: Mapping[str, float]
    borrowed: Mapping[str, float]
    fairness: float | None = None

    @property
    def revenue(self) -> float:
        """Utility, less payments, plus income (section 5.1)."""
        return self.earned + (self.received - self.paid) / MICRO

    def record(self) -> Fields:
        """Return the account as plain values, in units of utility."""
        return {
            "tenant": self.tenant,
            "share": dict(self.share),
            "jobs": self.jobs,
            "finished": self.finished,
            "earned": self.earned,
            "earned_own_share": self.earned_own,
            "paid": self.paid / MICRO,
            "received": self.received / MICRO,
            "to_itself": self.to_itself / MICRO,
            "revenue": self.revenue,
            "lent": dict(self.lent),
            "borrowed": dict(self.borrowed),
            "fairness_ratio": self.fairness,
        }


@dataclass(frozen=True, eq=False)
class TenantAccounts:
    """Accounts of all tenants of a run.

    Parameters
    ----------
    accounts : mapping of str to TenantAccount
        By tenant, in the order of the cluster.
    payments : polars.DataFrame
        One row for each payment: job, slot, payer, payee, amount in millionths.
    loans : polars.DataFrame
        One row for each (type, lender, borrower): place-slots lent in the whole run.
    loans_by_slot : polars.DataFrame
        One row for each (slot, tenant): places lent and borrowed, of all types together.
    charged : bool
        Whether the policy charges tenants.
    """

    accounts: Mapping[str, TenantAccount]
    payments: pl.DataFrame
    loans: pl.DataFrame
    loans_by_slot: pl.DataFrame
    charged: bool

    @property
    def fairness_variance(self) -> float | None:
        """Variance over tenants of the revenue fairness ratio; None if no tenant has one."""
        ratios = [
            account.fairness for account in self.accounts.values() if account.fairness is not None
        ]
        return pvariance(ratios) if ratios else None


def compute_tenant_accounts(run: RunData) -> TenantAccounts:
    """Compute the accounts of all tenants of a run; raise `InputError` if its jobs have none.

    If the policy doesn't charge, the accounts only contain utilities.
    """
    shares: Mapping[str, Mapping[str, int]] = run.info["parameters"].get("shares") or {}
    named = run.jobs["tenant"].drop_nulls().unique().sort().to_list()
    tenants = list(dict.fromkeys([*run.info["cluster"]["tenants"], *named]))
    if not tenants:
        raise InputError(
            Fault("", "no job of this run belongs to a tenant", "give the cluster and jobs tenants")
        )
    payments, borrowing = _payments(run)
    loans, loans_by_slot = _borrowed_places(run, shares, borrowing)
    revenue = float(run.jobs["utility"].sum())
    fractions = _owned_fractions(shares)
    # A run may have thousands of tenants, so each table is divided once, not filtered by tenant.
    jobs_by_tenant = _rows_by(
        run.jobs.with_columns(borrows=pl.col("job").is_in(borrowing["job"].unique().to_list())),
        "tenant",
    )
    external = loans.filter(pl.col("lender") != pl.col("borrower"))
    lent, borrowed = _rows_by(external, "lender"), _rows_by(external, "borrower")
    paid, received = _rows_by(payments, "payer"), _rows_by(payments, "payee")
    accounts = {}
    for tenant in tenants:
        jobs, payments_made = jobs_by_tenant(tenant), paid(tenant)
        account = TenantAccount(
            tenant=tenant,
            share=shares.get(tenant, {}),
            jobs=len(jobs),
            finished=int((jobs["outcome"] == "finished").sum()),
            earned=float(jobs["utility"].sum()),
            earned_own=float(jobs.filter(~pl.col("borrows"))["utility"].sum()),
            paid=_total(payments_made),
            received=_total(received(tenant)),
            to_itself=_total(payments_made.filter(pl.col("payee") == tenant)),
            lent=_by_type(lent(tenant)),
            borrowed=_by_type(borrowed(tenant)),
        )
        if revenue and (fraction := fractions.get(tenant)):
            account = replace(account, fairness=account.revenue / revenue / fraction)
        accounts[tenant] = account
    return TenantAccounts(accounts, payments, loans, loans_by_slot, run.payments is not None)


def timeline(run: RunData, accounts: TenantAccounts) -> pl.DataFrame:
    """Return each tenant's earnings, payments and loans by slot.

    Columns
    -------
    slot, tenant
        Slots in which the tenant's account changed.
    earned, paid, received
        Units of utility, without a tenant's payments to itself.
    lent, borrowed
        Place-slots of all types together.
    """
    finished = run.jobs.filter(pl.col("completion").is_not_null())
    external = accounts.payments.filter(pl.col("payer") != pl.col("payee")).with_columns(
        pl.col("amount") / MICRO
    )
    parts = [
        _amounts(finished, "completion", "tenant", "utility", "earned"),
        _amounts(external, "slot", "payer", "amount", "paid"),
        _amounts(external, "slot", "payee", "amount", "received"),
        accounts.loans_by_slot,
    ]
    return _add_up(parts, "slot", "tenant")


def _amounts(table: pl.DataFrame, slot: str, tenant: str, value: str, name: str) -> pl.DataFrame:
    return table.select(
        pl.col(slot).alias("slot"),
        pl.col(tenant).alias("tenant"),
        pl.col(value).cast(pl.Float64).alias(name),
    ).filter(pl.col("tenant").is_not_null())


def _payments(run: RunData) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the payments, and the distinct (job, slot) pairs that borrowed."""
    rows = []
    for record in run.payments() if run.payments is not None else ():
        amount = sum(
            round(value * MICRO) for key, value in record.items() if key not in PAYMENT_KEYS
        )
        rows.append((record["job"], record["slot"], record["payer"], record["payee"], amount))
    schema = typed_columns("job slot:i payer payee amount:i")
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table, table.select("job", "slot").unique()


def _borrowed_places(
    run: RunData, shares: Mapping[str, Mapping[str, int]], borrowing: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return loans by lender and borrower, and the tenants' loans by slot.

    Eq. (2) divides the borrowed places of a slot over all lenders, so each slot has a part for each
    pair of tenants. Blocks of slots are summed one by one, to bound the memory.
    """
    pairs = [pl.DataFrame(schema=typed_columns("type lender borrower places:f"))]
    by_slot = [pl.DataFrame(schema=typed_columns("slot:i tenant lent:f borrowed:f"))]
    if not borrowing.is_empty() and shares:
        owned = pl.DataFrame(
            [
                (tenant, kind, count)
                for tenant, share in shares.items()
                for kind, count in share.items()
                if count
            ],
            schema=typed_columns("lender type share:i"),
            orient="row",
        )
        used = _used_by_type(run).join(
            borrowing.with_columns(loan=True), on=["job", "slot"], how="left"
        )
        used = used.sort("slot")
        max_rows = max(1, _MAX_PARTS // max(1, len(owned)))
        for block in slot_blocks(used["slot"].to_numpy(), max_rows):
            parts = _divide_loans(used[block], owned)
            pairs.append(parts.group_by("type", "lender", "borrower").agg(pl.col("places").sum()))
            external = parts.filter(pl.col("lender") != pl.col("borrower"))
            by_slot += [
                _amounts(external, "slot", role, "places", name)
                for role, name in (("lender", "lent"), ("borrower", "borrowed"))
            ]
            by_slot = [_add_up(by_slot, "slot", "tenant")]
            pairs = [_add_up(pairs, "type", "lender", "borrower")]
    return pairs[0], by_slot[0]


_MAX_PARTS: Final = 2_000_000
"""Approximate number of parts of loans in a block of slots; each takes about 100 bytes."""


def _add_up(tables: Sequence[pl.DataFrame], *keys: str) -> pl.DataFrame:
    joined = pl.concat(tables, how="diagonal")
    return joined.group_by(keys).agg(pl.exclude(keys).sum()).sort(keys)


def _divide_loans(used: pl.DataFrame, owned: pl.DataFrame) -> pl.DataFrame:
    """Return borrowed places by slot, type, lender and borrower, as Eq. (2) divides them.

    Lenders share the loans of a slot in proportion to their unused places.
    """
    own = (
        used.filter(pl.col("loan").is_null())
        .group_by("slot", "type", lender="tenant")
        .agg(pl.col("places").sum().alias("own"))
    )
    loans = (
        used.filter(pl.col("loan").is_not_null())
        .group_by("slot", "type", borrower="tenant")
        .agg(pl.col("places").sum())
    )
    idle = (
        loans.select("slot", "type")
        .unique()
        .join(owned, on="type")
        .join(own, on=["slot", "type", "lender"], how="left")
        .with_columns((pl.col("share") - pl.col("own").fill_null(0)).clip(0).alias("idle"))
        .with_columns(pl.col("idle").sum().over("slot", "type").alias("all"))
        .filter(pl.col("idle") > 0)
    )
    joined = loans.join(idle, on=["slot", "type"])
    return joined.select(
        "slot",
        "type",
        "lender",
        "borrower",
        (pl.col("places") * pl.col("idle") / pl.col("all")).alias("places"),
    ).sort("slot", "type", "lender", "borrower")


def _used_by_type(run: RunData) -> pl.DataFrame:
    """Return the places that each job used in each slot, by type."""
    types = run.jobs.select(
        "job",
        "tenant",
        pl.col("demand")
        .map_elements(_parse_place_type, return_dtype=pl.String)
        .alias("worker_type"),
        pl.col("ps_demand")
        .map_elements(_parse_place_type, return_dtype=pl.String)
        .alias("ps_type"),
    )
    used = run.allocations.group_by("slot", "job").agg(
        pl.col("workers").sum().cast(pl.Int64), pl.col("ps").sum().cast(pl.Int64)
    )
    joined = used.join(types, on="job")
    parts = [
        joined.select("slot", "job", "tenant", type=kind, places=count)
        for kind, count in (("worker_type", "workers"), ("ps_type", "ps"))
    ]
    return pl.concat(parts).filter((pl.col("places") > 0) & pl.col("tenant").is_not_null())


def _parse_place_type(demand: str) -> str:
    """Return the place type in a demand such as ``worker/v100 1, bandwidth 1Gbps``."""
    return demand.partition(",")[0].rpartition(" ")[0]


def _rows_by(table: pl.DataFrame, key: str) -> Callable[[str], pl.DataFrame]:
    """Return a function that returns the rows of a table whose ``key`` is a tenant."""
    parts, no_rows = table.partition_by(key, as_dict=True), table.clear()
    return lambda tenant: parts.get((tenant,), no_rows)


def _total(payments: pl.DataFrame) -> int:
    return int(payments["amount"].sum())


def _by_type(loans: pl.DataFrame) -> dict[str, float]:
    table = loans.group_by("type").agg(pl.col("places").sum()).sort("type")
    return {str(kind): float(places) for kind, places in table.iter_rows()}


def _owned_fractions(shares: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return each tenant's share of all places: the mean over workers and parameter servers."""
    fractions: dict[str, list[float]] = {tenant: [] for tenant in shares}
    for prefix in ("worker", "ps"):
        owned = {
            tenant: sum(count for kind, count in share.items() if kind.startswith(prefix))
            for tenant, share in shares.items()
        }
        total = sum(owned.values())
        if total:
            for tenant, count in owned.items():
                fractions[tenant].append(count / total)
    return {tenant: sum(parts) / len(parts) for tenant, parts in fractions.items() if parts}
