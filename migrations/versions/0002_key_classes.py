"""Keys have a class of requests, and a salt where they share no prefixes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add `priority` and `salt` to keys; one that is there is of the class default, unsalted."""
    with op.batch_alter_table("keys") as keys:
        keys.add_column(sa.Column("priority", sa.Text(), nullable=False, server_default="default"))
        keys.add_column(sa.Column("salt", sa.Text(), nullable=False, server_default=""))
