"""Best schedule of one job at current prices: Algorithms 2-4 on one pool."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import View
from shadowprice.kernels.slots.choices import Gains, Slots, slot_at, slot_choices
from shadowprice.kernels.slots.placement import (
    EXACT,
    GREEDY,
    RANDOMISED,
    Method,
    Pairs,
    place_external,
)
from shadowprice.kernels.slots.rounding import mix
from shadowprice.kernels.slots.states import slot_states
from shadowprice.policies.bags.quotes import PricedBag
from shadowprice.policies.pdors.parameters import PdorsParameters
from shadowprice.policies.pdors.quotes import PdorsPricedJob, SlotChoices
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import PricedJob

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_NO_ROLE_MASKS = np.zeros((2, 0), dtype=np.bool_)
"""Empty masks, which make `slot_states` let every machine host both roles."""

METHODS = {"randomised": RANDOMISED, "exact": EXACT, "greedy": GREEDY}


class PdorsPlanner:
    """Searches schedules on one pool of servers that carry workers and parameter servers.

    ``board`` covers all servers; ``seed`` seeds the rounding.
    """

    def __init__(
        self, board: PriceBoard, cluster: Cluster, parameters: PdorsParameters, seed: int
    ) -> None:
        self.board = board
        self._cluster = cluster
        self._parameters = parameters
        self._method = METHODS[parameters.placement]
        self._stream = np.uint64(mix(np.uint64(0), seed % 2**63))
        # A resource that no server limits can't bind.
        self._limited = (cluster.capacity < UNLIMITED).any(axis=0)
        self._hosts = np.stack([cluster.hosts_workers, cluster.hosts_ps])
        both = self._hosts.all(axis=0)
        self._distinct_capacities = np.unique(cluster.capacity[both], axis=0)
        self._worker_board: PriceBoard | None = None

    @property
    def boards(self) -> Sequence[PriceBoard]:
        """The board of the single pool."""
        return (self.board,)

    def follow(self, ledger: LedgerView) -> None:
        """Update the board from the ledger."""
        self.board.follow(ledger)

    def quote(self, view: View, job: Job, remaining: int) -> PricedJob:
        """Return the priced job, whose methods quote and plan it.

        ``remaining`` is in progress units.
        """
        if job.bag is not None:
            return PricedBag(self._board_for_workers(view.ledger), view, job)
        return PdorsPricedJob(self, view, job, remaining)

    def _board_for_workers(self, ledger: LedgerView) -> PriceBoard:
        """Return a board of the servers that host workers, at the prices of the whole pool."""
        if self._hosts[0].all():
            return self.board
        if self._worker_board is None or self._worker_board.constants is not self.board.constants:
            pool = replace(self.board.pool, members=self._hosts[0])
            self._worker_board = PriceBoard(
                self._cluster, pool, self.board.constants, self._cluster.horizon
            )
        self._worker_board.follow(ledger)
        return self._worker_board

    def choices(self, job: Job, view: View) -> SlotChoices:
        """Compute the cost of every number of workers in every usable slot: Algorithm 4.

        Random draws depend only on the seed, the job's name and the slot.
        """
        groups = self.board.window(view.end - view.slot)
        ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        demanded = np.flatnonzero(((job.worker > 0) | (ps > 0)) & self._limited)
        hosts = self._hosts & (view.ledger.capacity > 0).any(axis=1)
        roles = not hosts.all()
        price_worker, price_server, room, state_of, first = slot_states(
            groups.row_of,
            groups.groups,
            groups.price,
            groups.free,
            groups.group_of,
            demanded,
            self.board.pool.shares(job.worker),
            self.board.pool.shares(ps),
            hosts if roles else _NO_ROLE_MASKS,
        )
        # The role columns limit where each kind fits: a worker takes 1 of the first, a PS 1 of the
        # second.
        worker, server = (
            np.append(demand[demanded], [side == 0, side == 1] if roles else []).astype(np.int64)
            for side, demand in enumerate((job.worker, ps))
        )
        job_stream = np.uint64(mix(self._stream, _hash_name(job.name)))
        streams = np.array([mix(job_stream, view.slot + int(t)) for t in first], dtype=np.uint64)
        internal_servers, spread = self.colocated_ps_counts(job)
        slots = Slots(price_worker, price_server, room, worker, server)
        cost, machine, relaxed, rounds = slot_choices(
            slots,
            pairs_of(job),
            internal_servers.copy(),
            Gains(job.gains.copy(), job.internal_gains.copy()),
            self._method_of(spread),
            streams,
        )
        return SlotChoices(state_of, slots, streams, cost, machine, relaxed, rounds)

    def _method_of(self, spread: bool) -> Method:
        parameters = self._parameters
        return Method(self._method, spread, parameters.factor, parameters.delta, parameters.tries)

    def colocated_ps_counts(self, job: Job) -> tuple[Integers, bool]:
        """Return the PS for each worker count on one machine, and whether to spread externally.

        Returns
        -------
        servers : ndarray of int64, shape (counts,) or (0,)
            Numbers of parameter servers; empty if (3.5) forbids co-location.
        spread : bool
            Whether an external placement must use at least two machines. On one machine the job
            would communicate at the internal rate, for which it has too few parameter servers.
        """
        external, offered = job.worker_bandwidth, job.ps_bandwidth
        internal = job.internal_bandwidth or external
        if (
            self._parameters.bandwidth == "internal"
            or job.ps is None
            or not offered
            or internal <= external
        ):
            return job.ps_counts, False
        # ceil(w b_i / B) > w for every w, so (3.4) and (3.5) can't both hold.
        if internal > offered:
            return np.zeros(0, dtype=np.int64), True
        counts = [-(-int(workers) * internal // offered) for workers in job.worker_counts]
        return np.array(counts, dtype=np.int64), True

    def max_gain_per_slot(self, job: Job) -> int:
        """Return the maximum progress units that one slot can add in an empty cluster."""
        max_gain = int(job.gains.max())
        servers, _ = self.colocated_ps_counts(job)
        if len(servers) and job.two_rates:
            ps = np.zeros_like(job.worker) if job.ps is None else job.ps
            needs: Integers = job.worker_counts[:, None] * job.worker + servers[:, None] * ps
            machines = self._distinct_capacities
            if job.ps is None:
                machines = self._cluster.capacity[self._cluster.hosts_workers]
            holds = np.asarray(needs[:, None, :] <= machines).all(axis=-1)
            fits = np.asarray(holds).any(axis=-1)
            max_gain = max(max_gain, int(job.internal_gains[fits].max(initial=0)))
        return max_gain

    def place(
        self, job: Job, choices: SlotChoices, state: int, choice: int
    ) -> list[tuple[int, int, int]]:
        """Return (server, workers, PS) triples of one choice, as Algorithm 4 places it.

        The first choices are external placements by worker count, the rest are on one machine.
        """
        counts = len(job.worker_counts)
        servers, spread = self.colocated_ps_counts(job)
        if choice >= counts:
            index = choice - counts
            machine = int(choices.machine[state, index])
            return [(machine, int(job.worker_counts[index]), int(servers[index]))]
        slot = slot_at(choices.slots, state)
        machines = len(slot.free)
        workers, ps = np.zeros((2, machines), dtype=np.int64)
        place_external(
            slot,
            pairs_of(job),
            np.full(counts, np.inf),
            self._method_of(spread),
            choices.streams[state],
            choice,
            workers,
            ps,
        )
        used = np.flatnonzero((workers > 0) | (ps > 0))
        return [(int(server), int(workers[server]), int(ps[server])) for server in used]


def pairs_of(job: Job) -> Pairs:
    """Return a job's numbers of workers with their numbers of PS, as kernels take them."""
    # Copies, because a job's arrays are read-only and numba would compile the kernels again.
    return Pairs(job.worker_counts.copy(), job.ps_counts.copy())


def _hash_name(name: str) -> int:
    """Return a number for a job that depends only on its name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
