"""Tokens over months: valid ones are listed, long expired ones are removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.service.auth import tokens_query
from shadowprice.service.store import Store, retention, tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    result = Store(str(tmp_path / "data"))
    result.open()
    yield result
    result.close()


def keep(
    store: Store,
    number: int,
    *,
    role: str = "tenant",
    expires: int | None = None,
    revoked: int | None = None,
) -> None:
    row = {
        "id": number,
        "hash": f"{number}",
        "role": role,
        "tenant": None,
        "note": "",
        "created": 0,
        "expires": expires,
        "revoked": revoked,
    }
    with store.transaction() as connection:
        store.write(connection, tables.tokens.insert(), [row])


def listed(store: Store, now: int) -> list[int]:
    with store.reading() as connection:
        return [row.id for row in connection.execute(tokens_query(now))]


def test_valid_tokens_are_listed_before_expired_ones(store: Store) -> None:
    keep(store, 1)
    keep(store, 2, expires=100)
    keep(store, 3, expires=20)
    keep(store, 4, revoked=10)
    assert listed(store, now=50) == [2, 1, 4, 3]
    assert listed(store, now=100) == [1, 4, 3, 2]


def test_expired_tokens_are_purged_after_the_retention_period(store: Store) -> None:
    keep(store, 1)
    keep(store, 2, expires=100)
    keep(store, 3, expires=20)
    keep(store, 4, expires=90, revoked=10)
    keep(store, 5, expires=10, revoked=60)
    # otherwise a file that holds it would make it valid again
    keep(store, 6, role="operator", revoked=10)
    retention.purge(store, before=50)
    assert listed(store, now=50) == [2, 1, 6, 5]
