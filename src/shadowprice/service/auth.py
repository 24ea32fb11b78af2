"""Authentication and authorization by bearer tokens.

The store has only hashes of tokens. A token itself is shown once, when it is created.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Select, case, select

from shadowprice.core.errors import Fault, InputError
from shadowprice.rest import TokenRole
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.store import Store, tables

TOKEN_FILE: Final = "operator.token"  # file of the operator's token in the data directory
_PREFIX: Final = "sp_"
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="shadowprice"'}


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, as its token identifies it."""

    id: int  # number of the token
    role: TokenRole
    tenant: str | None  # None for an operator's token

    @property
    def is_operator(self) -> bool:
        """Whether the caller is an operator, who may do everything."""
        return self.role == "operator"

    @property
    def scope(self) -> str | None:
        """The tenant that the caller is confined to; None for an operator."""
        return None if self.is_operator else self.tenant

    def check_operator(self) -> None:
        """Raise `ProblemError` if the caller isn't an operator."""
        if not self.is_operator:
            raise ProblemError("forbidden", "only an operator's token allows this")


class Tokens:
    """In-memory index of the tokens that are not revoked, by hash."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._callers: dict[str, tuple[Caller, int | None]] = {}  # caller and expiry, by hash
        self._hashes: dict[int, str] = {}  # by number

    def load(self) -> None:
        """Load the index from the store; call once, before the first request."""
        table = tables.tokens
        with self._store.reading() as connection:
            rows = connection.execute(select(table).where(table.c.revoked.is_(None))).all()
        self._callers, self._hashes = {}, {}
        for row in rows:
            self._add(row.hash, Caller(row.id, row.role, row.tenant), row.expires)

    def _add(self, token_hash: str, caller: Caller, expires: int | None) -> None:
        self._callers[token_hash] = caller, expires
        self._hashes[caller.id] = token_hash

    def add(self, token: str, caller: Caller, expires: int | None) -> None:
        """Add a token to the index, after it was stored."""
        self._add(hash_token(token), caller, expires)

    def remove(self, number: int) -> None:
        """Remove a token from the index, after it was revoked in the store."""
        self._callers.pop(self._hashes.pop(number, ""), None)

    def is_valid(self, caller: Caller, now: int) -> bool:
        """Return whether an authenticated caller's token is still valid."""
        _, expires = self._callers.get(self._hashes.get(caller.id, ""), (None, now))
        return expires is None or expires > now

    def caller(self, header: str | None, now: int) -> Caller:
        """Return the caller of an ``Authorization`` header, or raise `ProblemError`."""
        kind, _, token = (header or "").partition(" ")
        entry = self._callers.get(hash_token(token.strip())) if kind.lower() == "bearer" else None
        if entry is not None and (entry[1] is None or entry[1] > now):
            return entry[0]
        detail = "send `Authorization: Bearer TOKEN`"
        if entry is not None:
            detail = "the token has expired; ask the operator for another"
        elif header:
            detail = "the token is unknown or revoked"
        raise ProblemError("unauthenticated", detail, headers=_CHALLENGE)


def hash_token(token: str) -> str:
    """Return the hash of a token, without salt, because a token has 256 random bits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def new_token() -> str:
    """Return a new random token."""
    return _PREFIX + secrets.token_urlsafe(32)


@operation
def create_token(
    batch: Batch, token: str, role: TokenRole, tenant: str | None, note: str, expires: int | None
) -> int:
    """Store the hash of a new token, and return the token's number.

    ``expires`` is in nanoseconds since 1970.
    """
    row: Mapping[str, Any] = {
        "hash": hash_token(token),
        "role": role,
        "tenant": tenant,
        "note": note,
        "created": batch.now,
        "expires": expires,
        "revoked": None,
    }
    table = tables.tokens
    batch.state.store.fault("write")
    primary_key = batch.connection.execute(table.insert().values(**row)).inserted_primary_key
    assert primary_key is not None
    if tenant is not None:
        batch.undo.put(batch.state.token_tenants, tenant, None)
    return int(primary_key[0])


@operation
def revoke_token(batch: Batch, number: int) -> None:
    """Revoke a token; raise `ProblemError` if the number is unknown or revoked."""
    table = tables.tokens
    batch.state.store.fault("write")
    changed = batch.connection.execute(
        table.update()
        .where(table.c.id == number, table.c.revoked.is_(None))
        .values(revoked=batch.now)
    )
    if not changed.rowcount:
        raise ProblemError("not-found", f"no valid token has the id {number}")


def tokens_query(now: int) -> Select[Any]:
    """Return a query of all tokens: valid ones first, then newest first."""
    table = tables.tokens
    valid = table.c.revoked.is_(None) & (table.c.expires.is_(None) | (table.c.expires > now))
    return select(table).order_by(case((valid, 0), else_=1), table.c.id.desc())


def read_token_file(path: Path) -> str | None:
    """Return the token in a file, or None without a file.

    Raise `InputError` if the file can't be read, isn't private, or has no token.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from error
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise InputError(Fault(str(path), "is not a regular file"))
        if mode & 0o077:
            hint = f"run: chmod 600 {shlex.quote(str(path))}"
            raise InputError(Fault(str(path), "can be read by others", hint))
        token = file.read(1_000).strip()
    if not token:
        raise InputError(Fault(str(path), "contains no token", "remove it, and restart"))
    return token


def check_token_path(path: Path) -> None:
    """Raise `InputError` if a token file can't be created at a path; create nothing."""
    probe = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        probe.touch(0o600, exist_ok=False)
        probe.unlink()
    except OSError as error:
        hint = "name a file in an existing, writable directory"
        raise InputError(Fault(str(path), f"cannot be written: {error.strerror}", hint)) from error


def write_token_file(path: Path, token: str) -> None:
    """Write a token atomically into a file that only its owner can read."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


_PROGRESS_TOKEN: Final = re.compile(
    r"spp_(?P<generation>[0-9]{1,9})_[\w-]+\.(?P<job>[\w-]+)", re.ASCII
)


def progress_token(key: bytes, job: str, generation: int) -> str:
    """Return the token with which a generation may report progress; it contains the job's key."""
    name = job.encode("utf-8", "surrogateescape")
    digest = hmac.new(key, f"{generation}\0".encode() + name, hashlib.sha256).digest()
    return f"spp_{generation}_{_base64(digest)}.{_base64(name)}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def command_identity(key: bytes, job: str, generation: int, commanded_at: int) -> str:
    """Return the identity of a command, which differs for commands of other stores and copies."""
    text = f"order\0{generation}\0{commanded_at}\0{job}".encode("utf-8", "surrogateescape")
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:32]


def verify_progress_token(key: bytes, header: str | None) -> tuple[str, int]:
    """Return the job's key and the generation of a progress token, or raise `ProblemError`."""
    kind, _, token = (header or "").partition(" ")
    match = _PROGRESS_TOKEN.fullmatch(token.strip())
    if kind.lower() == "bearer" and match is not None:
        name = match["job"] + "=" * (-len(match["job"]) % 4)
        with suppress(ValueError):  # invalid base64
            job = base64.urlsafe_b64decode(name).decode("utf-8", "surrogateescape")
            generation = int(match["generation"])
            if hmac.compare_digest(progress_token(key, job, generation), token.strip()):
                return job, generation
    raise invalid_progress_token()


def invalid_progress_token() -> ProblemError:
    """Return the error for a request without the progress token of its job."""
    detail = "send the value of SHADOWPRICE_PROGRESS_TOKEN as a bearer token"
    return ProblemError("unauthenticated", detail, headers=_CHALLENGE)
