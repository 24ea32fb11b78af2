"""Tokens: who asks, and what they may. Kept as hashes; the tokens themselves are shown once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Select, case, select

from shadowprice.core.errors import Fault, InputError
from shadowprice.service.problems import ProblemError
from shadowprice.service.store import Store, tables
from shadowprice.service.truth.batch import Batch

TOKEN_FILE: Final = "operator.token"
"""The operator's token in a data directory."""

_BEGINNING: Final = "sp_"


class Role(StrEnum):
    """What a token is for."""

    OPERATOR = "operator"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Parameters
    ----------
    id : int
        Number of the token.
    role : Role
        What it is for.
    tenant : str or None
        Whose it is, where it is a tenant's.
    """

    id: int
    role: Role
    tenant: str | None

    @property
    def operates(self) -> bool:
        """Whether it may do everything."""
        return self.role is Role.OPERATOR

    @property
    def scope(self) -> str | None:
        """The tenant that it is confined to, None for none."""
        return None if self.operates else self.tenant

    def check_operator(self) -> None:
        """Refuse everyone but the operator.

        Raises
        ------
        ProblemError
            If it is a tenant's token.
        """
        if not self.operates:
            raise ProblemError("forbidden", "only an operator's token allows this")


@dataclass(frozen=True, slots=True)
class _Known:
    caller: Caller
    expires: int | None


class Tokens:
    """All tokens that are valid, by hash.

    Parameters
    ----------
    store : Store
        Where they are kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _Known] = {}
        self._hashes: dict[int, str] = {}

    def load(self) -> None:
        """Read them: once, before anybody asks."""
        table = tables.tokens
        with self._store.reading() as connection:
            rows = connection.execute(select(table).where(table.c.revoked.is_(None))).all()
        self._known, self._hashes = {}, {}
        for row in rows:
            self._add(row.hash, Caller(row.id, Role(row.role), row.tenant), row.expires)

    def _add(self, key: str, caller: Caller, expires: int | None) -> None:
        self._known[key] = _Known(caller, expires)
        self._hashes[caller.id] = key

    def made(self, number: int, one: CreateToken) -> None:
        """Take note of a token that is in the store now."""
        self._add(hashed(one.token), Caller(number, one.role, one.tenant), one.expires)

    def revoked(self, number: int) -> None:
        """Take note that a token is valid no more; the store says so."""
        self._known.pop(self._hashes.pop(number, ""), None)

    def holds(self, caller: Caller, now: int) -> bool:
        """Whether a token that was shown once is valid still."""
        known = self._known.get(self._hashes.get(caller.id, ""))
        return known is not None and (known.expires is None or known.expires > now)

    def caller(self, header: str | None, now: int) -> Caller:
        """Return who sent an ``Authorization`` header.

        Raises
        ------
        ProblemError
            If it holds no token that is valid now.
        """
        kind, _, token = (header or "").partition(" ")
        known = self._known.get(hashed(token.strip())) if kind.lower() == "bearer" else None
        if known is None or (known.expires is not None and known.expires <= now):
            detail = "send `Authorization: Bearer TOKEN`"
            if known is not None:
                detail = "the token has expired; ask the operator for another"
            elif header:
                detail = "the token is not known here"
            challenge = {"WWW-Authenticate": 'Bearer realm="shadowprice"'}
            raise ProblemError("unauthenticated", detail, headers=challenge)
        return known.caller


def hashed(token: str) -> str:
    """Return what is kept of a token: it holds 256 random bits, and needs no salt."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def new_token() -> str:
    """Return a new token."""
    return _BEGINNING + secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class CreateToken:
    """A token is handed out.

    Parameters
    ----------
    token : str
        The token.
    role : Role
        What it is for.
    tenant : str or None
        Whose.
    note : str
        For people.
    expires : int or None
        Until when.
    """

    token: str
    role: Role
    tenant: str | None
    note: str
    expires: int | None

    def perform(self, batch: Batch) -> int:
        """Keep it, and return its number."""
        row: Mapping[str, Any] = {
            "hash": hashed(self.token),
            "role": self.role.value,
            "tenant": self.tenant,
            "note": self.note,
            "created": batch.now,
            "expires": self.expires,
            "revoked": None,
        }
        table = tables.tokens
        batch.truth.store.fault("write")
        made = batch.connection.execute(table.insert().values(**row)).inserted_primary_key
        assert made is not None
        return int(made[0])


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """A token is taken back."""

    number: int

    def perform(self, batch: Batch) -> None:
        """Let it be valid no more."""
        table = tables.tokens
        batch.truth.store.fault("write")
        changed = batch.connection.execute(
            table.update()
            .where(table.c.id == self.number, table.c.revoked.is_(None))
            .values(revoked=batch.now)
        )
        if not changed.rowcount:
            raise ProblemError("not-found", f"no valid token has the id {self.number}")


def valid_first(now: int) -> Select[Any]:
    """Return the query of tokens, those that are valid before all others, each the newest first."""
    table = tables.tokens
    valid = table.c.revoked.is_(None) & (table.c.expires.is_(None) | (table.c.expires > now))
    return select(table).order_by(case((valid, 0), else_=1), table.c.id.desc())


# ------------------------------------------------------------------ the operator's file


def read_token_file(path: Path) -> str | None:
    """Return the token in a file, None where there is no file.

    Raises
    ------
    InputError
        If others may read it, or it holds no token.
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
            raise InputError(Fault(str(path), "is no regular file"))
        if mode & 0o077:
            raise InputError(Fault(str(path), "can be read by others", f"run: chmod 600 {path}"))
        token = file.read(1_000).strip()
    if not token:
        raise InputError(Fault(str(path), "holds no token", "remove it, and start again"))
    return token


def check_token_place(path: Path) -> None:
    """Make sure that a token can be written where none is yet, and leave nothing there.

    Raises
    ------
    InputError
        If it cannot.
    """
    tried = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        tried.touch(0o600, exist_ok=False)
        tried.unlink()
    except OSError as error:
        mend = "name a file in a folder that is there and can be written"
        raise InputError(Fault(str(path), f"cannot be written: {error.strerror}", mend)) from error


def write_token_file(path: Path, token: str) -> None:
    """Write a token into a file that only its owner reads; it appears as a whole."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


# ------------------------------------------------------------------ jobs' own tokens


def progress_token(key: bytes, job: str, generation: int) -> str:
    """Return what lets one generation of a job report its progress, and nothing else."""
    text = f"{generation}\0{job}".encode("utf-8", "surrogateescape")
    digest = hmac.new(key, text, hashlib.sha256).digest()
    return f"spp_{generation}_" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def order_identity(key: bytes, job: str, generation: int, ordered: int) -> str:
    """Return what tells an order of this store from any other, also of a copy that went on.

    A copy has the same key, and gives a number out again; but at another moment.

    Parameters
    ----------
    key : bytes
        The store's own.
    job : str
        The job.
    generation : int
        The generation that is ordered.
    ordered : int
        When it was, in nanoseconds since 1970.
    """
    text = f"order\0{generation}\0{ordered}\0{job}".encode("utf-8", "surrogateescape")
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:32]


def generation_of(key: bytes, job: str, header: str | None) -> int:
    """Return the generation that a token of a job's own was made for.

    Raises
    ------
    ProblemError
        If it is none of this job.
    """
    kind, _, token = (header or "").partition(" ")
    parts = token.strip().split("_", 2)
    if kind.lower() == "bearer" and len(parts) == 3 and parts[0] == "spp":
        number = parts[1]
        if number.isascii() and number.isdigit() and len(number) < 10:
            expected = progress_token(key, job, int(number))
            if hmac.compare_digest(expected.encode(), token.strip().encode()):
                return int(number)
    detail = "send the value of SHADOWPRICE_PROGRESS_TOKEN as a bearer token"
    challenge = {"WWW-Authenticate": 'Bearer realm="shadowprice"'}
    raise ProblemError("unauthenticated", detail, headers=challenge)
