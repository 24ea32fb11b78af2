"""Startup options of the service, validated before it starts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.relative_values import STATED
from shadowprice.core.wording import quote_for_display
from shadowprice.policies.choice import PolicyChoice

DEFAULT_LISTEN: Final = "127.0.0.1:8642"

NO_EXECUTOR: Final = "none"
"""Executor name for none: an observing service then only simulates its own decisions."""

ANY_TENANT: Final = "*"
"""Matches all tenants, and jobs without a tenant."""

MAX_BODY_BYTES: Final = 8 << 20
"""Maximum bytes of a request's body."""

MAX_JOBS_PER_REQUEST: Final = 1_000
"""Maximum number of jobs in one request."""

MAX_OPEN_JOBS: Final = 10_000
"""Default maximum number of a tenant's open jobs."""

MAX_OPEN_MEMORY: Final = 64 << 20
"""Default maximum bytes of memory that the records of a tenant's open jobs take."""

MAX_UPLOAD_BYTES: Final = 100 << 20
"""Default maximum bytes of an upload."""

MAX_TENANT_UPLOAD_BYTES: Final = 1 << 30
"""Default maximum bytes of a tenant's uploads."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Startup options of a service.

    Parameters
    ----------
    cluster : Path
        Cluster file.
    data : str
        Data directory, or URL of a database.
    host : str
        Address to listen on.
    port : int
        Port; 0 for any.
    policy : PolicyChoice
        Policy and its parameters.
    executor : str
        Executor that runs jobs, or observes jobs of another scheduler. ``none`` is valid only for
        an observing service.
    executor_settings : mapping of str to str
        Options of that executor.
    address : str
        Address of the executor's cluster, if it is remote.
    observe : bool
        Whether the service sends no commands, and only records what really runs and what it would
        have decided.
    keep_days : float
        Retention of closed jobs, in days.
    token_file : Path or None
        File of the operator's token; None for the one in the data directory.
    families : Path or None
        Library of measured throughput curves, for jobs that name a family (`inputs.families`).
    users : mapping of str to tuple of str
        Users as whom each tenant's jobs may run; ``*`` for all tenants and jobs without a tenant.
        If there are any, every job has to name one. Otherwise jobs run as the service's user.
    trainingjobs : str or None
        Address of the API server whose `TrainingJob` resources become jobs, as
        `kubernetes.connection` parses it; None for no controller.
    lease : tuple of str or None
        Namespace and name of the Lease that elects the leader; None elects by the store alone.
    max_open_jobs : int
        Maximum number of open jobs that a tenant's token may submit.
    max_open_memory : int
        Maximum bytes of memory that the records of these jobs take.
    max_upload_bytes : int
        Maximum bytes of an upload, which holds the files of a job.
    max_tenant_upload_bytes : int
        Maximum bytes of the uploads that a tenant's token may store, each at least 64 KiB.
    until : str or None
        End of the timespan, as `core.moments` parses it; ``none`` removes the stored one, and None
        keeps it.
    max_overrun : float or None
        Times its stated length after which a run of a job is abandoned; None for no limit.
    values : str
        How values of jobs without a budget count: one of `core.relative_values.VALUES`.
    nothing_runs : bool
        Whether an operator asserts that no earlier job of the data still runs, although the
        executor's records are missing or different.
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
    max_overrun: float | None = None
    values: str = STATED
    max_open_jobs: int = MAX_OPEN_JOBS
    max_open_memory: int = MAX_OPEN_MEMORY
    max_upload_bytes: int = MAX_UPLOAD_BYTES
    max_tenant_upload_bytes: int = MAX_TENANT_UPLOAD_BYTES

    @property
    def cluster_address(self) -> str:
        """Address of the API server for the lease and the controller."""
        return self.trainingjobs if self.trainingjobs is not None else self.address

    def users_of(self, tenant: str | None) -> tuple[str, ...]:
        """Return the users as whom a tenant's jobs may run."""
        own = () if tenant is None or tenant == ANY_TENANT else self.users.get(tenant, ())
        return tuple(dict.fromkeys((*own, *self.users.get(ANY_TENANT, ()))))

    @property
    def loopback(self) -> bool:
        """Whether the service listens on this machine's loopback interface only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_users(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse the values of ``--allow-user TENANT:USER`` into users by tenant.

    Raises
    ------
    InputError
        If a value isn't such a pair.
    """
    users: dict[str, tuple[str, ...]] = {}
    for text in texts:
        tenant, colon, user = text.rpartition(":")
        if not colon or not tenant or not user:
            hint = "write vision:alice, or *:nobody for all tenants"
            raise InputError(
                Fault("--allow-user", f"{quote_for_display(text)} has no user name", hint)
            )
        users[tenant] = (*users.get(tenant, ()), user)
    return users


def parse_lease(text: str) -> tuple[str, str] | None:
    """Parse ``NAMESPACE/NAME``; return None for an empty text.

    Raises
    ------
    InputError
        If the text has another form.
    """
    if not text:
        return None
    namespace, _, name = text.partition("/")
    label = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
    if not (label.fullmatch(namespace) and label.fullmatch(name)) or len(text) > 127:
        raise InputError(
            Fault("--lease", f"{quote_for_display(text)} is not a lease", "write NAMESPACE/NAME")
        )
    return namespace, name


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``[V6]:PORT``, ``:PORT``, ``PORT`` or ``HOST``.

    Raises
    ------
    InputError
        If the text has another form.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdigit() else (text, "8642")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        hint = f"write {DEFAULT_LISTEN}"
        raise InputError(Fault("--listen", f"{text!r} is not HOST:PORT", hint))
    return host or "127.0.0.1", int(port)
