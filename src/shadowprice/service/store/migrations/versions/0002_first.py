"""The first version, in which the store creates a new database from ``tables``."""

from __future__ import annotations

revision = "0002"
down_revision = None


def upgrade() -> None:
    """Do nothing, because no database has an older version."""
