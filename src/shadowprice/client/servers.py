"""Which service is meant, and with which token: the environment, or what ``login`` kept.

Kept in ``$XDG_CONFIG_HOME/shadowprice/servers.json`` (``~/.config`` by default), readable by its
owner only: tokens stand in it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from shadowprice.core.errors import Fault, InputError

SERVER, TOKEN = "SHADOWPRICE_SERVER", "SHADOWPRICE_TOKEN"  # names of variables, no secrets
DEFAULT: Final = "http://127.0.0.1:8642"
"""Where a service listens unless told otherwise."""

_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is, and what shows who asks.

    Parameters
    ----------
    url : str
        ``http://host:port``, without a path of the API.
    token : str or None
        The token, None for what needs none.
    """

    url: str
    token: str | None = field(default=None, repr=False)


def checked_url(text: str, place: str = "the server") -> str:
    """Return an address as it is used; ``host:port`` is read as ``http://host:port``.

    Raises
    ------
    InputError
        If it is none.
    """
    text = text.strip()
    full = text if "://" in text else f"http://{text}"
    mend = "write http://127.0.0.1:8642"
    try:
        parts = urlsplit(full)
        (parts.hostname or "").encode("idna")  # no label of a host is empty, or too long
        wrong = parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    # Other alphabets have an ASCII form (xn--...), which alone goes over the wire.
    if wrong or not full.isascii() or any(character <= " " for character in full):
        raise InputError(Fault(place, f"{text!r} is no address of a service", mend))
    if parts.username or parts.password or parts.query or parts.fragment:
        message = "holds more than an address"
        raise InputError(Fault(place, message, "leave out users, queries and fragments"))
    return full.rstrip("/")


def checked_token(text: str, place: str) -> str:
    """Return a token without the white space around it.

    Raises
    ------
    InputError
        If it cannot be one.
    """
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(Fault(place, "holds no token", "it is one word, such as sp_..."))
    return token


def home() -> Path | None:
    """Return the file in which servers are kept, None for who has no home."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".config"
    except RuntimeError:  # a user without a name, as containers have them
        return None
    return folder / "shadowprice" / "servers.json"


@dataclass(slots=True)
class Servers:
    """Servers that ``login`` kept.

    Parameters
    ----------
    known : dict of str to Address
        By the name that they were given.
    chosen : str or None
        The one that is meant where none is named.
    """

    known: dict[str, Address] = field(default_factory=dict)
    chosen: str | None = None

    @classmethod
    def load(cls) -> Servers:
        """Read them; none where there is no file.

        Raises
        ------
        InputError
            If others can read the file, or it is damaged.
        """
        path = home()
        if path is None:
            return cls()
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise InputError(Fault(str(path), error.strerror or "cannot be read")) from error
        if mode & 0o077:
            raise InputError(Fault(str(path), "others can read it", f"chmod 600 {path}"))
        mend = "remove it, and login again"
        try:
            document: Any = json.loads(data[:_LARGEST])
            servers = {
                str(name): Address(checked_url(one["url"], str(path)), one.get("token"))
                for name, one in document["servers"].items()
            }
            chosen = document.get("chosen")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(Fault(str(path), "is damaged", mend)) from error
        return cls(servers, chosen if chosen in servers else next(iter(servers), None))

    def save(self) -> None:
        """Write them, atomically, for the owner's eyes only.

        Raises
        ------
        InputError
            If there is no folder for them.
        """
        path = home()
        mend = f"set XDG_CONFIG_HOME to a folder of its own, or {SERVER} and {TOKEN}"
        if path is None:
            raise InputError(Fault("this user", "has no home to keep servers in", mend))
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            message = f"cannot be made ({error.strerror})"
            raise InputError(Fault(str(path.parent), message, mend)) from error
        document = {
            "chosen": self.chosen,
            "servers": {
                name: {"url": one.url, "token": one.token} for name, one in self.known.items()
            },
        }
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def find(named: str | None = None, environment: Mapping[str, str] = os.environ) -> Address:
    """Return the service that is meant.

    Parameters
    ----------
    named : str or None
        A name that ``login`` kept, or an address; None for the one of the environment, then the
        one that was chosen last, then the default address of a service.
    environment : mapping
        ``SHADOWPRICE_SERVER`` and ``SHADOWPRICE_TOKEN``.

    Raises
    ------
    InputError
        If it is neither kept nor an address.
    """
    token = environment.get(TOKEN)
    token = None if token is None else checked_token(token, TOKEN)
    stated = environment.get(SERVER) or None
    kept = Servers.load()
    if named is None and stated is None:
        if kept.chosen is None:
            return Address(DEFAULT, token)
        found = kept.known[kept.chosen]
        return Address(found.url, token or found.token)
    meant, place = (named, "--server") if named is not None else (str(stated), SERVER)
    if meant in kept.known:
        found = kept.known[meant]
    elif not any(mark in meant for mark in ":./") and meant != "localhost":
        known = ", ".join(kept.known) or "none is kept yet"
        mend = f"login first, or write its address; known: {known}"
        raise InputError(Fault(place, f"{meant!r} is no server that is known", mend))
    else:
        url = checked_url(meant, place)
        own = (one.token for one in kept.known.values() if one.url == url)
        found = Address(url, next(own, None))
    # A token of the environment is for the server of the environment: no other one gets to see it.
    meets = named is None or stated is None or found.url == _url_of(stated, kept)
    return Address(found.url, (token if meets else None) or found.token)


def _url_of(stated: str, kept: Servers) -> str:
    return kept.known[stated].url if stated in kept.known else checked_url(stated, SERVER)
