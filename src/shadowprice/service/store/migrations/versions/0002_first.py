"""The version of a new database, which the store creates from ``tables`` without a migration."""

from __future__ import annotations

revision = "0002"
down_revision = None


def upgrade() -> None:
    """Do nothing: no database is older than this version."""
