"""``shadowprice serve`` and ``shadowprice backup``: the live service and its backups."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli import options as o
from shadowprice.cli.completion import complete_policy
from shadowprice.cli.console import print_line, print_note, print_result
from shadowprice.cli.options import expand_options
from shadowprice.core.amounts import Dimension, parse_amount, parse_positive_duration
from shadowprice.core.defaults import DEFAULT_POLICY
from shadowprice.core.errors import Fault, InputError, MissingExtraError
from shadowprice.core.paths import expand_home
from shadowprice.core.relative_values import SERVICE_VALUES, check_values
from shadowprice.core.wording import quote_for_display
from shadowprice.results.output_paths import check_output_file

if TYPE_CHECKING:
    from shadowprice.service.settings import ServiceSettings


REQUIRED_PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "prometheus_client")
"""Packages of the service's extra."""


class MissingServiceError(MissingExtraError):
    """The service's libraries aren't installed, so the call is wrong, not the run."""

    exit_code = 2


def check_extra(data: str = "") -> None:
    """Check that the service's libraries are installed, and for a URL the database's driver."""
    packages = (*REQUIRED_PACKAGES, "psycopg") if "://" in data else REQUIRED_PACKAGES
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingServiceError(package, "service", "the live service")


def _expand(text: str | None) -> str | None:
    """Expand ``~`` in an option that is a path or something else."""
    return str(expand_home(text)) if text is not None and text.startswith("~") else text


@dataclass(frozen=True)
class ServeOptions:
    """Options that become the settings of a service."""

    cluster: Annotated[
        Path, typer.Option("--cluster", "-c", help="Cluster file (YAML).", metavar="FILE")
    ]
    data: Annotated[
        str,
        typer.Option(
            help="Data directory, or the URL of a PostgreSQL database.",
            metavar="DIR|URL",
            callback=_expand,
        ),
    ] = "shadowprice-data"
    listen: Annotated[
        str, typer.Option(help="Address and port to listen on; port 0 picks a free port.")
    ] = "127.0.0.1:8642"
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            help="Scheduling policy: a name listed by `shadowprice policies`, or ./file.py:NAME.",
            autocompletion=complete_policy,
        ),
    ] = DEFAULT_POLICY
    settings: o.SetOption = None
    params: o.ParamsOption = None
    executor: Annotated[
        str,
        typer.Option(
            help="Executor that runs jobs: local, ray, kubernetes or ./file.py:NAME; with "
            "--observe, the executor that observes jobs, or none.",
            metavar="NAME",
        ),
    ] = "local"
    address: Annotated[
        str,
        typer.Option(
            help="Cluster that the executor runs jobs on: auto, ray://HOST:PORT or a kubeconfig.",
            callback=_expand,
        ),
    ] = ""
    executor_set: o.ExecutorSetOption = None
    observe: Annotated[
        bool,
        typer.Option(
            "--observe",
            help="Observe the jobs of another scheduler and report what the policy would have "
            "decided; send no commands.",
        ),
    ] = False
    allow_user: Annotated[
        list[str] | None,
        typer.Option(
            help="User that jobs of a tenant may run as (`run.user`); tenant * means every "
            "tenant. Repeatable; every job must then name a user. Requires root.",
            metavar="TENANT:USER",
        ),
    ] = None
    families: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with measured curves, for unmeasured jobs that name their family "
            "(`profile --family` writes it).",
            metavar="FILE",
        ),
    ] = None
    trainingjobs: Annotated[
        str | None,
        typer.Option(
            help="Kubernetes cluster whose TrainingJob resources become jobs: a kubeconfig, "
            "in-cluster, or none. With --executor kubernetes, the default is its cluster.",
            metavar="WHERE",
            callback=_expand,
        ),
    ] = None
    lease: Annotated[
        str,
        typer.Option(
            help="Lease in that cluster by which one of several instances is elected leader.",
            metavar="NAMESPACE/NAME",
        ),
    ] = ""
    nothing_runs: Annotated[
        bool,
        typer.Option(
            "--nothing-runs",
            help="Start from a restored copy without the executor's records. Only safe if "
            "every machine that ran its jobs is off.",
        ),
    ] = False
    until: Annotated[
        str | None,
        typer.Option(
            help="End of the timespan, after which no job runs or is planned: 18:00, "
            "2026-11-23T18:00, 6h, '20 slots', or none to remove it. Repeating the same "
            "text at the next start has no effect.",
            metavar="TIME",
        ),
    ] = None
    max_overrun: Annotated[
        float | None,
        typer.Option(
            help="Maximum run time of a job, as a multiple of its stated length, such as 10; a "
            "longer job is abandoned. Applies to jobs that are submitted or revised from now on. "
            "By default, only a job's own `walltime` limits it.",
            min=1.0,
            metavar="FACTOR",
        ),
    ] = None
    values: Annotated[
        str,
        typer.Option(
            help="How values of jobs without a budget count: as stated, or relative to those of "
            "their tenant's other jobs. By default they are relative once the service has tenants. "
            "Jobs that are open when the option changes count as before until they are revised.",
            metavar="auto|stated|relative",
        ),
    ] = "auto"
    keep: Annotated[str, typer.Option(help="Retention period of closed jobs, such as 365d.")] = (
        "365d"
    )
    max_open_jobs: Annotated[
        int, typer.Option(help="Maximum number of a tenant's open jobs.", min=1)
    ] = 10_000
    max_open_memory: Annotated[
        str,
        typer.Option(
            help="Maximum memory that the records of a tenant's open jobs take, such as 64MiB."
        ),
    ] = "64MiB"
    max_upload_size: Annotated[
        str, typer.Option(help="Maximum size of the files that a job receives from its submitter.")
    ] = "100MiB"
    max_uploads: Annotated[
        str, typer.Option(help="Maximum size of these files, all jobs of a tenant together.")
    ] = "1GiB"
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the operator's token, written at the first start; by default in "
            "the data directory.",
            metavar="FILE",
        ),
    ] = None

    def service_settings(self) -> ServiceSettings:
        """Parse the options."""
        from shadowprice.service.settings import (
            ServiceSettings,
            parse_lease,
            parse_listen,
            parse_users,
        )

        check_values(self.values, "--values", SERVICE_VALUES)
        host, port = parse_listen(self.listen)
        retention = parse_positive_duration(self.keep, "--keep", "365d")
        choice = o.policy_choice(self.policy, self.params, self.settings)
        return ServiceSettings(
            cluster=self.cluster,
            data=self.data,
            host=host,
            port=port,
            policy=replace(choice, settings={**choice.info.live_settings, **choice.settings}),
            executor=self.executor,
            executor_settings=_pairs(self.executor_set or []),
            address=self.address,
            observe=self.observe,
            keep_days=float(retention) / 86_400,
            max_open_jobs=self.max_open_jobs,
            max_open_memory=_bytes(self.max_open_memory, "--max-open-memory"),
            max_upload_bytes=_bytes(self.max_upload_size, "--max-upload-size"),
            max_tenant_upload_bytes=_bytes(self.max_uploads, "--max-uploads"),
            token_file=self.token_file,
            families=self.families,
            users=parse_users(self.allow_user or []),
            trainingjobs=self._trainingjobs_location(),
            lease=parse_lease(self.lease),
            nothing_runs=self.nothing_runs,
            until=self.until,
            max_overrun=self.max_overrun,
            values=self.values,
        )

    def _trainingjobs_location(self) -> str | None:
        """Return the location of the API server whose TrainingJobs become jobs, or None."""
        if self.trainingjobs is None:
            return self.address if self.executor == "kubernetes" and not self.observe else None
        if self.trainingjobs == "none":
            return None
        if self.observe:
            hint = "remove one of them"
            raise InputError(Fault("--trainingjobs", "not valid with --observe", hint))
        return self.trainingjobs

    def token_path(self) -> Path:
        """Return the file of the operator's token."""
        return (
            self.token_file or Path(self.data if "://" not in self.data else ".") / "operator.token"
        )


@expand_options()
def serve(
    options: ServeOptions, output: o.OutputOption = "table", quiet: o.QuietOption = False
) -> None:
    """Run the service: accept jobs, promise completion slots, run jobs, and recover.

    The first start writes the operator's token to DIR/operator.token. Jobs run as the user of the
    service unless --allow-user names others: every tenant can run programs on this machine.

    [bold]Examples[/bold]
        shadowprice serve --cluster cluster.yaml --data /var/lib/shadowprice
        shadowprice serve -c cluster.yaml --executor ray --address ray://head:10001
        shadowprice serve -c cluster.yaml --data postgresql+psycopg://shadowprice@db/shadowprice
    """
    check_extra(options.data)
    from shadowprice.kernels.jit import compiling_notice, print_on_stderr
    from shadowprice.service.server import serve as run
    from shadowprice.simulator.warm_up import is_warm, warm_up_all

    settings = options.service_settings()
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if not is_warm(settings.policy.name):
        if not quiet:
            print_on_stderr(compiling_notice())
        # Compiling during a slot would delay decisions and the renewal of the lease.
        warm_up_all([settings.policy.name])

    def on_ready(address: str) -> None:
        if output == "json":
            print_result(json.dumps({"address": address, "pid": os.getpid()}))
        else:
            print_line(f"listening on {address}")
            if not quiet:
                print_note(f"the operator's token is in {options.token_path()}")

    run(settings, on_ready)


def _bytes(text: str, location: str) -> int:
    try:
        amount = parse_amount(text)
    except InputError as error:
        raise InputError(Fault(location, str(error))) from error
    if amount.dimension is not Dimension.BYTES or not amount.value:
        fault = Fault(location, f"expected bytes with a unit, got {text!r}", "write 64MiB")
        raise InputError(fault)
    return amount.value


def _pairs(texts: list[str]) -> dict[str, str]:
    """Parse the values of ``--executor-set``; the executor validates the settings."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            fault = Fault("--executor-set", f"expected KEY=VALUE, got {quote_for_display(text)}")
            raise InputError(fault)
        if name in pairs:
            raise InputError(
                Fault("--executor-set", f"{quote_for_display(name)} is set twice", "set it once")
            )
        pairs[name] = value
    return pairs


def backup(
    data: Annotated[
        str, typer.Argument(help="Data directory of the service.", metavar="DIR", callback=_expand)
    ],
    target: Annotated[Path, typer.Argument(help="Output file.", metavar="FILE")],
    output: o.OutputOption = "table",
) -> None:
    """Back up the data of a service, even a running one, to a file.

    The submitted files that open jobs need are copied to the folder FILE.uploads. An earlier backup
    is replaced; the database of a service is never overwritten.

    To restore, stop the service, remove shadowprice.db, shadowprice.db-wal and shadowprice.db-shm
    from its directory, and copy the file there as shadowprice.db. Keep the executor's records: they
    list running jobs, and jobs that are unknown to the backup are stopped. In another directory,
    the backup is refused because jobs would run twice.

    [bold]Example[/bold]
        shadowprice backup /var/lib/shadowprice backup.db
    """
    check_extra()
    from shadowprice.service import upload_backups
    from shadowprice.service.store import files
    from shadowprice.service.store.files import FILE, RESTORE_HINT, StoreError
    from shadowprice.service.upload_backups import UploadBackup

    if "://" in data:
        hint = "use pg_dump, which copies a database while it is written"
        raise InputError(Fault(data, "is the URL of a database", hint))
    source = Path(data) / FILE
    if not source.is_file():
        raise InputError(Fault(data, "not a data directory of a service", f"it lacks {FILE}"))
    if not files.is_store(source):
        message = "not a database of a service, or damaged"
        raise InputError(Fault(str(source), message, f"if it is damaged, {RESTORE_HINT}"))
    # First: an earlier backup at the target may be replaced, but never a service's database.
    files.check_backup_target(target)
    check_output_file(target, lambda _: files.is_store(target))
    upload_backups.check_backup_folder(target)
    copied: list[UploadBackup] = []
    with ExitStack() as resources:

        def copy(database: Path) -> None:
            resources.enter_context(upload_backups.lock_backup_folder(target))
            copied.append(upload_backups.copy_uploads(database, Path(data), target))

        files.backup_file(source, target, copy)
        [uploads] = copied
        try:
            uploads.remove_others(target)
        except OSError as error:
            raise StoreError(f"cannot remove old copies from {uploads.folder}: {error}") from error
    record: dict[str, Any] = {
        "file": str(target),
        "bytes": target.stat().st_size,
        "uploads": {
            "folder": str(uploads.folder),
            "count": uploads.count,
            "bytes": uploads.size,
            "incomplete_jobs": list(uploads.incomplete),
        },
    }
    if uploads.incomplete:
        shown = ", ".join(quote_for_display(name) for name in uploads.incomplete[:10])
        more = f" and {len(uploads.incomplete) - 10} more" if len(uploads.incomplete) > 10 else ""
        print_note(
            f"the submitted files of {shown}{more} are missing or damaged, so the backup lacks them"
        )
    if output == "json":
        print_result(json.dumps(record))
        return
    text = f"wrote {target} ({record['bytes']:,} bytes)"
    if uploads.count:
        text += f" and {uploads.count:,} uploads in {uploads.folder} ({uploads.size:,} bytes)"
    print_line(text)
