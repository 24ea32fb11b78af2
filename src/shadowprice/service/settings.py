"""What a service was started with, checked before anything begins."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import shown
from shadowprice.policies.choice import PolicyChoice

DEFAULT_LISTEN: Final = "127.0.0.1:8642"

NOTHING: Final = "none"
"""Name of no executor: a service that observes then plays its own decisions alone."""

ANYBODY: Final = "*"
"""Stands for all tenants, and for jobs of none."""

BODY: Final = 8 << 20
"""Bytes of a request's body, at most."""

BATCH_JOBS: Final = 1_000
"""Jobs of one request, at most."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a service was started with.

    Parameters
    ----------
    cluster : Path
        The cluster file.
    data : str
        Data directory, or the address of a database.
    host : str
        Address to listen on.
    port : int
        Port, 0 for any.
    policy : PolicyChoice
        The policy with its parameters.
    executor : str
        What runs jobs, or sees others run; ``none`` for nothing, in a service that observes.
    executor_settings : mapping of str to str
        What only that executor understands.
    address : str
        Where what runs jobs is, for an executor of another place.
    observe : bool
        Whether nothing is commanded: the service follows what really runs, and says what it would
        have done.
    keep_days : float
        Days that closed jobs are kept.
    token_file : Path or None
        Where the operator's token is, in place of the data directory.
    families : Path or None
        The library of measured curves for jobs that name their family (`inputs.families`).
    users : mapping of str to tuple of str
        Users as whom each tenant's jobs may run; ``*`` for all tenants and jobs of none. Where
        there are any, every job has to name one; else all run as the service's own user.
    trainingjobs : str or None
        Where the API server is whose `TrainingJob` resources become jobs: as
        `kubernetes.connection` reads it; None follows none.
    lease : tuple of str or None
        Namespace and name of the Lease by which one of several instances is elected; None elects by
        the store alone.
    until : str or None
        End of the timespan, as `core.moments` reads it, or ``none``; None keeps what there is.
    nothing_runs : bool
        Whether nothing runs any more of what the data ordered, where the executor's records are
        others than before.
    """

    cluster: Path
    data: str
    host: str = "127.0.0.1"
    port: int = 8642
    policy: PolicyChoice = field(default_factory=lambda: PolicyChoice("rolling"))
    executor: str = "local"
    executor_settings: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    observe: bool = False
    keep_days: float = 365.0
    token_file: Path | None = None
    families: Path | None = None
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trainingjobs: str | None = None
    lease: tuple[str, str] | None = None
    nothing_runs: bool = False
    until: str | None = None

    @property
    def cluster_address(self) -> str:
        """Where the API server is, for what is not the executor's."""
        return self.trainingjobs if self.trainingjobs is not None else self.address

    def users_of(self, tenant: str | None) -> tuple[str, ...]:
        """Return the users as whom jobs of a tenant may run."""
        own = () if tenant is None or tenant == ANYBODY else self.users.get(tenant, ())
        return tuple(dict.fromkeys((*own, *self.users.get(ANYBODY, ()))))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_users(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what ``--allow-user TENANT:USER`` allows, by tenant.

    Raises
    ------
    InputError
        If one is no such pair.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        tenant, colon, user = text.rpartition(":")
        if not colon or not tenant or not user:
            mend = "write vision:alice, or *:nobody for all tenants"
            raise InputError(Fault("--allow-user", f"{shown(text)} names no user", mend))
        found[tenant] = (*found.get(tenant, ()), user)
    return found


def parse_lease(text: str) -> tuple[str, str] | None:
    """Return namespace and name of ``NAMESPACE/NAME``, None for nothing.

    Raises
    ------
    InputError
        If it is neither.
    """
    if not text:
        return None
    namespace, _, name = text.partition("/")
    label = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
    if not (label.fullmatch(namespace) and label.fullmatch(name)) or len(text) > 127:
        raise InputError(Fault("--lease", f"{shown(text)} is no lease", "write NAMESPACE/NAME"))
    return namespace, name


def parse_listen(text: str) -> tuple[str, int]:
    """Return address and port of ``HOST:PORT``, ``[V6]:PORT``, ``:PORT`` or ``PORT``.

    Raises
    ------
    InputError
        If it is none of them.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdigit() else (text, "8642")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        mend = f"write {DEFAULT_LISTEN}"
        raise InputError(Fault("--listen", f"{text!r} is no address and port", mend))
    return host or "127.0.0.1", int(port)
