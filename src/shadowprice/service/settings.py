"""Startup options of the service, validated before it starts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shadowprice.core.defaults import DEFAULT_POLICY
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.relative_values import AUTO
from shadowprice.core.wording import quote_for_display
from shadowprice.policies.choice import PolicyChoice

DEFAULT_LISTEN: Final = "127.0.0.1:8642"
NO_EXECUTOR: Final = "none"  # for an observing service that only simulates its own decisions
ANY_TENANT: Final = "*"  # matches all tenants, and jobs without a tenant
MAX_BODY_BYTES: Final = 8 << 20  # maximum bytes of a request's body
MAX_JOBS_PER_REQUEST: Final = 1_000  # maximum number of jobs in one request
MAX_OPEN_JOBS: Final = 10_000  # default maximum number of a tenant's open jobs
MAX_OPEN_MEMORY: Final = 64 << 20
"""Default maximum bytes of memory that the records of a tenant's open jobs take."""
MAX_UPLOAD_BYTES: Final = 100 << 20  # default maximum bytes of an upload
MAX_TENANT_UPLOAD_BYTES: Final = 1 << 30  # default maximum bytes of a tenant's uploads


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Startup options of a service."""

    cluster: Path  # cluster file
    data: str  # data directory, or URL of a database
    host: str = "127.0.0.1"
    port: int = 8642  # 0 for any free port
    policy: PolicyChoice = field(default_factory=lambda: PolicyChoice(DEFAULT_POLICY))
    executor: str = "local"  # name of an executor, or `NO_EXECUTOR`
    executor_settings: Mapping[str, str] = field(default_factory=dict)
    address: str = ""  # of the executor's cluster, if it is remote
    observe: bool = False  # simulate decisions, and record which jobs another scheduler runs
    keep_days: float = 365.0  # retention of closed jobs
    token_file: Path | None = None  # the operator's; None for the file in the data directory
    families: Path | None = None  # measured throughput curves (`inputs.families`)
    # Users as whom jobs may run, by tenant (`ANY_TENANT` for all). If it isn't empty, every job
    # must name a user. Otherwise jobs run as the service's user.
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Address of the API server whose `TrainingJob`s become jobs; None for no controller.
    trainingjobs: str | None = None
    lease: tuple[str, str] | None = None  # namespace and name; None elects the leader by the store
    nothing_runs: bool = False  # asserts that no earlier job still runs; see `execution.modes`
    # End of the timespan, as `core.moments` parses it, or `state.timespan.NONE`; None keeps it.
    until: str | None = None
    max_overrun: float | None = None  # multiple of its stated length after which a job is abandoned
    values: str = AUTO  # one of `core.relative_values.SERVICE_VALUES`
    # Limits of tenants' tokens; operators have none except for the size of an upload:
    max_open_jobs: int = MAX_OPEN_JOBS  # open jobs of a tenant
    max_open_memory: int = MAX_OPEN_MEMORY  # bytes that the records of these jobs take
    max_upload_bytes: int = MAX_UPLOAD_BYTES  # of an upload, which has the files of a job
    max_tenant_upload_bytes: int = MAX_TENANT_UPLOAD_BYTES  # of all uploads of a tenant

    @property
    def cluster_address(self) -> str:
        """Address of the Kubernetes API server for the lease and the controller."""
        return self.trainingjobs if self.trainingjobs is not None else self.address

    def users_of(self, tenant: str | None) -> tuple[str, ...]:
        """Return the users as whom a tenant's jobs may run."""
        # A tenant named like `ANY_TENANT` has no users of its own.
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
    """Parse the values of ``--allow-user TENANT:USER``, or raise `InputError`."""
    users: dict[str, tuple[str, ...]] = {}
    for text in texts:
        tenant, colon, user = text.rpartition(":")
        if not colon or not tenant or not user:
            message = f"{quote_for_display(text)} has no user name"
            hint = "write vision:alice, or *:nobody for all tenants"
            raise InputError(Fault("--allow-user", message, hint))
        users[tenant] = (*users.get(tenant, ()), user)
    return users


def parse_lease(text: str) -> tuple[str, str] | None:
    """Parse ``NAMESPACE/NAME``, or raise `InputError`; return None for an empty text."""
    if not text:
        return None
    namespace, _, name = text.partition("/")
    label = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
    if not (label.fullmatch(namespace) and label.fullmatch(name)) or len(text) > 127:
        message = f"{quote_for_display(text)} is not a lease"
        raise InputError(Fault("--lease", message, "write NAMESPACE/NAME"))
    return namespace, name


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``[V6]:PORT``, ``:PORT``, ``PORT`` or ``HOST``."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdigit() else (text, "8642")
    host = host.removeprefix("[").removesuffix("]")
    # The length is checked first, because `int` raises above 4,300 digits.
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65_535:
        hint = f"write {DEFAULT_LISTEN}"
        raise InputError(Fault("--listen", f"{quote_for_display(text)} is not HOST:PORT", hint))
    return host or "127.0.0.1", int(port)
