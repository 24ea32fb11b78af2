"""The service's URL and token, from the environment or from ``login``.

``login`` stores them in ``$XDG_CONFIG_HOME/shadowprice/servers.json`` (``~/.config`` by default).
Only the owner can read the file, because it contains tokens.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from shadowprice.core.errors import Fault, InputError

SERVER_VARIABLE, TOKEN_VARIABLE = "SHADOWPRICE_SERVER", "SHADOWPRICE_TOKEN"  # environment variables
DEFAULT_URL: Final = "http://127.0.0.1:8642"  # default URL of a service
_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """URL of a service (``http://host:port``), and the token for it."""

    url: str
    token: str | None = field(default=None, repr=False)


def normalize_url(text: str, location: str = "the server") -> str:
    """Validate and normalize a URL; ``host:port`` becomes ``http://host:port``."""
    text = text.strip()
    url = text if "://" in text else f"http://{text}"
    hint = "write http://127.0.0.1:8642"
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # raises for empty or long labels
        is_invalid = parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0
    except ValueError:
        is_invalid = True
    # Only the ASCII form of an international host name (xn--...) is allowed.
    if is_invalid or not url.isascii() or any(character <= " " for character in url):
        raise InputError(Fault(location, f"{text!r} is not a valid address of a service", hint))
    if parts.username or parts.password or parts.query or parts.fragment:
        message = "contains more than an address"
        raise InputError(Fault(location, message, "leave out users, queries and fragments"))
    return url.rstrip("/")


def normalize_token(text: str, location: str) -> str:
    """Validate a token, and strip white space around it."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(Fault(location, "contains no token", "it is one word, such as sp_..."))
    return token


def config_file() -> Path | None:
    """Return the path of the file of stored servers; None for a user without a home directory."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".config"
    except RuntimeError:  # a user id without an entry in passwd, as in some containers
        return None
    return folder / "shadowprice" / "servers.json"


@dataclass(slots=True)
class SavedEndpoints:
    """The endpoints that ``login`` stored."""

    endpoints: dict[str, Endpoint] = field(default_factory=dict)  # by name
    default: str | None = None  # name of the endpoint of the last login

    @classmethod
    def load(cls) -> SavedEndpoints:
        """Load the stored servers, if any; raise `InputError` if others can read the tokens."""
        path = config_file()
        if path is None:
            return cls()
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = file.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise InputError(Fault(str(path), error.strerror or "cannot be read")) from error
        if mode & 0o077:
            hint = f"run: chmod 600 {shlex.quote(str(path))}"
            raise InputError(Fault(str(path), "can be read by others", hint))
        hint = "remove it, and login again"
        try:
            document: Any = json.loads(data[:_MAX_FILE_BYTES])
            servers = {
                str(name): Endpoint(normalize_url(entry["url"], str(path)), entry.get("token"))
                for name, entry in document["servers"].items()
            }
            default = document.get("chosen")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(Fault(str(path), "is damaged", hint)) from error
        return cls(servers, default if default in servers else next(iter(servers), None))

    def save(self) -> None:
        """Write the file atomically, readable by its owner only."""
        path = config_file()
        hint = (
            f"set XDG_CONFIG_HOME to a folder of its own, or {SERVER_VARIABLE} and {TOKEN_VARIABLE}"
        )
        if path is None:
            raise InputError(Fault("this user", "has no home directory to store servers in", hint))
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            message = f"cannot be written ({error.strerror})"
            raise InputError(Fault(str(path), message, hint)) from error
        document = {
            "chosen": self.default,
            "servers": {
                name: {"url": address.url, "token": address.token}
                for name, address in self.endpoints.items()
            },
        }
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


def resolve_endpoint(
    named: str | None = None, environment: Mapping[str, str] = os.environ
) -> Endpoint:
    """Return the URL and token of a service.

    ``named`` is a name from ``login``, or a URL. None stands for ``SHADOWPRICE_SERVER``, then the
    server of the last login, then the default URL.
    """
    token = environment.get(TOKEN_VARIABLE)
    token = None if token is None else normalize_token(token, TOKEN_VARIABLE)
    env_server = environment.get(SERVER_VARIABLE) or None
    stored = SavedEndpoints.load()
    if named is None and env_server is None:
        if stored.default is None:
            return Endpoint(DEFAULT_URL, token)
        address = stored.endpoints[stored.default]
        return Endpoint(address.url, token or address.token)
    target, location = (
        (named, "--server") if named is not None else (str(env_server), SERVER_VARIABLE)
    )
    if target in stored.endpoints:
        address = stored.endpoints[target]
    elif not any(character in target for character in ":./") and target != "localhost":
        hint = "write its address, or save it with shadowprice login"
        if stored.endpoints:
            hint += f"; saved: {', '.join(stored.endpoints)}"
        raise InputError(Fault(location, f"unknown server {target!r}", hint))
    else:
        url = normalize_url(target, location)
        tokens = (entry.token for entry in stored.endpoints.values() if entry.url == url)
        address = Endpoint(url, next(tokens, None))
    # The environment's token belongs to the environment's server, and is sent nowhere else.
    if named is not None and env_server is not None:
        saved = stored.endpoints.get(env_server)
        env_url = normalize_url(env_server, SERVER_VARIABLE) if saved is None else saved.url
        token = token if address.url == env_url else None
    elif named is not None:
        token = None
    return Endpoint(address.url, token or address.token)
