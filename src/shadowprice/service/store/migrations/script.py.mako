"""${message}."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Upgrade the tables from the previous version."""
    ${upgrades if upgrades else "pass"}
