"""What really ran where another scheduler commands, and what came of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables and their indices."""
    op.create_table(
        "observed",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("placement", sa.Text, nullable=False),
    )
    op.create_index("observed_by_job", "observed", ["job", "id"])
    op.create_index("observed_by_end", "observed", ["ended"])
    op.create_table(
        "outcomes",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("slot", sa.BigInteger),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("done", sa.Integer),
        sa.Column("utility", sa.Float),
    )
    op.create_index("outcomes_by_end", "outcomes", ["ended"])
