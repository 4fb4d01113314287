"""Servers that do not tell how many requests they serve at once have a number of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add `max_rows` to nodes; those that are there have the default."""
    op.add_column("nodes", sa.Column("max_rows", sa.Integer(), nullable=True))
