"""Tokens: what authenticates requests."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from shadowprice.rest.base import ApiRecord

TokenRole = Literal["operator", "tenant"]


class NewToken(ApiRecord):
    """A token that was just created; ``token`` is not shown again."""

    id: int
    role: TokenRole
    tenant: str | None
    note: str
    expires: datetime | None
    token: str = Field(repr=False)


class Token(ApiRecord):
    """A token, without its secret."""

    id: int
    role: TokenRole
    tenant: str | None
    note: str
    created: datetime
    expires: datetime | None
    revoked: datetime | None


class TokenList(ApiRecord):
    """Tokens, the valid ones first."""

    tokens: list[Token]
