"""``shadowprice login`` and ``tokens``: known services and their tokens."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from shadowprice.cli.console import Output, print_json, print_line, stdout
from shadowprice.cli.live import ServerOption, connect, format_time, print_table
from shadowprice.cli.options import OutputOption
from shadowprice.core.amounts import parse_positive_duration
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shadowprice.client import Token
    from shadowprice.client.endpoints import Endpoint


def login(
    server: Annotated[
        str | None,
        typer.Argument(help="URL of a service, or name of a saved server.", metavar="[URL|NAME]"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="Name to save the server under; by default its host."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token, such as the operator's; by default the token is read "
            "from a prompt or a pipe.",
            metavar="FILE",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove a saved server.")] = False,
    output: OutputOption = "table",
) -> None:
    """Save the URL and token of a service; the last saved server is the default.

    Without an argument, list the saved servers. With a saved name, make that server the default.

    [bold]Examples[/bold]
        shadowprice login http://127.0.0.1:8642 --token-file shadowprice-data/operator.token
        shadowprice login https://scheduler.lab --name lab
    """
    from shadowprice.client.endpoints import (
        Endpoint,
        SavedEndpoints,
        config_file,
        normalize_token,
        normalize_url,
    )

    saved = SavedEndpoints.load()
    if server is None:
        _list(saved, output)
        return
    if remove:
        if server not in saved.endpoints:
            raise InputError(Fault(server, "unknown server", "see shadowprice login"))
        del saved.endpoints[server]
        saved.default = (
            next(iter(saved.endpoints), None) if saved.default == server else saved.default
        )
        saved.save()
        if output == "json":
            _list(saved, output)
        return
    line = None
    if server in saved.endpoints and token_file is None:
        if name is not None:
            message = f"{server!r} already has a name"
            raise InputError(Fault("--name", message, "remove --name, or give a URL"))
        saved.default = server
    else:
        existing = saved.endpoints.get(server)
        url = existing.url if existing is not None else normalize_url(server, "URL")
        label = name or (server if existing is not None else _label(url, saved.endpoints))
        if any(mark in label for mark in ":./ ") and name is not None:
            raise InputError(Fault("--name", f"{label!r} looks like an address", "write lab"))
        token = normalize_token(_token(token_file), str(token_file or "the token"))
        from shadowprice.client import Client

        with Client(Endpoint(url, token)) as client:
            info = client.service()  # raises an error if the token or address is wrong
        saved.endpoints[label] = Endpoint(url, token)
        saved.default = label
        line = f"{label}: {url}, policy {info.policy}, as {info.caller.tenant or info.caller.role}"
    saved.save()
    if output == "json":
        _list(saved, output)
        return
    if line is not None:
        stdout().print(line)
    if server in saved.endpoints:
        print_line(f"{server} is the default now ({config_file()})")


def _label(url: str, known: Mapping[str, Endpoint]) -> str:
    """Return a default name for a server: its host, and a number if that name is taken."""
    host = urlsplit(url).hostname or "server"
    try:
        address = ip_address(host)
    except ValueError:
        stem = "local" if host == "localhost" else host.split(".")[0]
    else:
        stem = "local" if address.is_loopback else re.sub("[.:]+", "-", host)
    labels = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(label for label in labels if label not in known or known[label].url == url)


def _token(file: Path | None) -> str:
    if file is not None:
        from shadowprice.inputs.text import read_text

        if file.is_file() and file.stat().st_mode & 0o077:
            hint = f"run: chmod 600 {shlex.quote(str(file))}"
            raise InputError(Fault(str(file), "can be read by others", hint))
        return read_text(file)
    if sys.stdin.isatty():
        with redirect_stdout(sys.stderr):
            return str(typer.prompt("Token", hide_input=True))
    return sys.stdin.readline(1_000)


def _list(saved: Any, output: Output) -> None:
    rows = [
        {"name": name, "url": address.url, "default": name == saved.default}
        for name, address in saved.endpoints.items()
    ]
    if output == "json":
        print_json(rows)
    elif rows:
        print_table(
            ["NAME", "URL", ""], [(r["name"], r["url"], "*" if r["default"] else " ") for r in rows]
        )
    else:
        print_line("no service is saved; run shadowprice login URL")


def tokens(
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", help="Tenant to issue a token to.")
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="Issue an operator token.")] = False,
    expires: Annotated[
        str | None, typer.Option(help="Validity period of the token, such as 90d.")
    ] = None,
    note: Annotated[str, typer.Option(help="Purpose of the token.")] = "",
    revoke: Annotated[
        int | None, typer.Option(help="Number of the token to revoke.", min=1)
    ] = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """List, issue and revoke tokens of a service (operators).

    [bold]Example[/bold]
        shadowprice tokens --tenant vision --expires 90d
    """
    if operator and tenant is not None:
        raise InputError(Fault("--operator", "not valid with --tenant", "remove one of them"))
    if expires is not None:
        parse_positive_duration(expires, "--expires", "90d")
    with connect(server) as client:
        if revoke is not None:
            client.revoke_token(revoke)
            if output == "json":
                [revoked] = (token for token in client.tokens() if token.id == revoke)
                print_json(revoked.record)
        elif operator or tenant is not None:
            created = client.create_token(tenant, expires=expires, note=note)
            if output == "json":
                print_json(created.record)
            else:
                typer.echo(created.token)
        else:
            listed = client.tokens()
            if output == "json":
                print_json([token.record for token in listed])
                return
            now = datetime.now(UTC)
            rows = [
                (token.id, token.role, token.tenant, _validity(token, now), token.note)
                for token in listed
            ]
            print_table(["ID", "ROLE", "TENANT", "VALID", "NOTE"], rows, right=["ID"])


def _validity(token: Token, now: datetime) -> str:
    if token.revoked is not None:
        return f"revoked {format_time(token.revoked, now)}"
    if token.expires is None:
        return "without end"
    return f"{'until' if token.expires > now else 'expired'} {format_time(token.expires, now)}"
