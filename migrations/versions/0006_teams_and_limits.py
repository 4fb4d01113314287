"""Teams, limits of keys and teams, rotated keys, and more about each audit entry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """A key that is there belongs to no team, has no limits, and may use every model."""
    _add_teams()
    with op.batch_alter_table("keys") as keys:
        keys.add_column(sa.Column("team_id", sa.Text(), nullable=True))
        keys.add_column(sa.Column("models", sa.JSON(), nullable=True))
        keys.add_column(sa.Column("limits", sa.JSON(), nullable=False, server_default="{}"))
        keys.add_column(sa.Column("old_digest", sa.Text(), nullable=True))
        keys.add_column(sa.Column("old_prefix", sa.Text(), nullable=True))
        keys.add_column(sa.Column("old_until_s", sa.Double(), nullable=True))
        keys.add_column(sa.Column("rotated_at_s", sa.Double(), nullable=True))
    with op.batch_alter_table("audit") as audit:
        audit.add_column(sa.Column("client", sa.Text(), nullable=False, server_default=""))
        audit.add_column(sa.Column("outcome", sa.Text(), nullable=False, server_default="done"))


def _add_teams() -> None:
    op.create_table(
        "teams",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("deleted_at_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_teams")),
    )
    op.create_index(
        "uq_teams_active_name",
        "teams",
        ["name"],
        unique=True,
        sqlite_where=sa.text("deleted_at_s IS NULL"),
        postgresql_where=sa.text("deleted_at_s IS NULL"),
    )
