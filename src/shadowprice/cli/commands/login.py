"""``shadowprice login``: which services there are, and with which token."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli.console import Output, print_json, stdout
from shadowprice.cli.live import ServerOption, connected, show
from shadowprice.cli.options import OutputOption
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.client import Token


def login(
    server: Annotated[
        str | None,
        typer.Argument(help="Address of a service, or a name kept.", metavar="[URL|NAME]"),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="What to call it; by default its host.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="File that holds the token, such as the operator's; otherwise it is asked for, or "
            "read from a pipe.",
            metavar="FILE",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget a server instead.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep a service's address and token, so that commands find it; the last one is the default.

    Without an argument: list what is kept. With a name that is kept: make it the default.

    [bold]Examples[/bold]

    shadowprice login http://127.0.0.1:8642 --token-file shadowprice-data/operator.token

    shadowprice login https://scheduler.lab --name lab
    """
    from shadowprice.client.servers import Address, Servers, checked_token, checked_url, home

    kept = Servers.load()
    if server is None:
        _list(kept, output)
        return
    if remove:
        if server not in kept.known:
            raise InputError(Fault(server, "is not kept", "see shadowprice login"))
        del kept.known[server]
        kept.chosen = next(iter(kept.known), None) if kept.chosen == server else kept.chosen
        kept.save()
        return
    line = None
    if server in kept.known and token_file is None:
        kept.chosen = server
    else:
        known = kept.known.get(server)
        url = known.url if known is not None else checked_url(server, "URL")
        label = name or (server if known is not None else _label(url))
        if any(mark in label for mark in ":./ ") and name is not None:
            raise InputError(Fault("--name", f"{label!r} looks like an address", "write lab"))
        token = checked_token(_token(token_file), str(token_file or "the token"))
        from shadowprice.client import Client

        with Client(Address(url, token)) as client:
            told = client.service()  # a wrong token or address is not kept
        kept.known[label] = Address(url, token)
        kept.chosen = label
        line = f"{label}: {url}, policy {told.policy}, as {told.caller.tenant or told.caller.role}"
    kept.save()
    if output is Output.JSON:
        _list(kept, output)
        return
    if line is not None:
        stdout().print(line)
    if server in kept.known:
        stdout().print(f"{server} is the default now ({home()})", soft_wrap=True)


def _label(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host = (parts.hostname or "server").split(".")[0]
    return "local" if host in {"127", "localhost"} else host


def _token(file: Path | None) -> str:
    if file is not None:
        from shadowprice.inputs.text import read_text

        if file.is_file() and file.stat().st_mode & 0o077:
            raise InputError(Fault(str(file), "can be read by others", f"run: chmod 600 {file}"))
        return read_text(file)
    if sys.stdin.isatty():
        return str(typer.prompt("Token", hide_input=True))
    return sys.stdin.readline(1_000)


def _list(kept: Any, output: Output) -> None:
    rows = [
        {"name": name, "url": one.url, "default": name == kept.chosen}
        for name, one in kept.known.items()
    ]
    if output is Output.JSON:
        print_json(rows)
    elif rows:
        show(
            ["NAME", "URL", ""], [(r["name"], r["url"], "*" if r["default"] else " ") for r in rows]
        )
    else:
        stdout().print("no server is kept; shadowprice login URL", soft_wrap=True)


def tokens(
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", help="Hand out a token to this tenant.")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Hand out an operator's token.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long it is valid, such as 90d.")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    revoke: Annotated[
        int | None, typer.Option("--revoke", help="Take the token of this number back.", min=1)
    ] = None,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the tokens of a service, hand one out, or take one back (operators).

    [bold]Example[/bold]

    shadowprice tokens --tenant vision --expires 90d
    """
    if operator and tenant is not None:
        raise InputError(Fault("--operator", "and --tenant exclude each other"))
    if expires is not None:
        from shadowprice.core.amounts import parse_span

        parse_span(expires, "--expires", "90d")
    with connected(server) as client:
        if revoke is not None:
            client.revoke_token(revoke)
        elif operator or tenant is not None:
            made = client.create_token(tenant, expires=expires, note=note)
            if output is Output.JSON:
                print_json(made.record)
            else:
                typer.echo(made.token)
        else:
            found = client.tokens()
            if output is Output.JSON:
                print_json([one.record for one in found])
                return
            now = datetime.now(UTC)
            rows = [(one.id, one.role, one.tenant, _validity(one, now), one.note) for one in found]
            show(["ID", "ROLE", "TENANT", "VALID", "NOTE"], rows, right=["ID"])


def _validity(token: Token, now: datetime) -> str:
    from shadowprice.cli.live import when

    if token.revoked is not None:
        return f"revoked {when(token.revoked, now)}"
    if token.expires is None:
        return "for good"
    return f"{'until' if token.expires > now else 'expired'} {when(token.expires, now)}"
