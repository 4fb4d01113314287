"""Waking of nodes that sleep: their MAC addresses, and whether requests do it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0006"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """A node that is there reports its own MAC addresses, and no request wakes it."""
    with op.batch_alter_table("nodes") as nodes:
        nodes.add_column(sa.Column("wake_mac", sa.Text(), nullable=True))
        nodes.add_column(sa.Column("macs", sa.JSON(), nullable=True))
        nodes.add_column(sa.Column("wakes", sa.Boolean(), nullable=False, server_default="0"))
