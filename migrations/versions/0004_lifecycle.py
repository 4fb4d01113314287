"""Models come and go: policies, schedules, states of nodes, targets of aliases, prices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add what is new; an alias keeps its target as its only one."""
    op.add_column("nodes", sa.Column("state", sa.Text(), nullable=False, server_default="active"))
    op.add_column("nodes", sa.Column("prices", sa.JSON(), nullable=True))
    op.add_column("keys", sa.Column("paid_budget", sa.Double(), nullable=True))
    op.add_column("usage", sa.Column("cost", sa.Double(), nullable=True))
    _alter_aliases()
    op.create_table(
        "policies",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("keep_alive_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("model", "node_id", name="pk_policies"),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("load_cron", sa.Text(), nullable=True),
        sa.Column("unload_cron", sa.Text(), nullable=True),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("load_fired_s", sa.Double(), nullable=True),
        sa.Column("unload_fired_s", sa.Double(), nullable=True),
        sa.Column("pending", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
    )


def _alter_aliases() -> None:
    with op.batch_alter_table("aliases") as batch:
        batch.add_column(sa.Column("targets", sa.JSON(), nullable=False, server_default="[]"))
        batch.add_column(sa.Column("selector", sa.Text(), nullable=False, server_default="first"))
        batch.add_column(sa.Column("spill_at", sa.Integer(), nullable=True))
    old = sa.table("aliases", sa.column("name", sa.Text()), sa.column("target", sa.Text()))
    new = sa.table("aliases", sa.column("name", sa.Text()), sa.column("targets", sa.JSON()))
    connection = op.get_bind()
    for name, target in connection.execute(sa.select(old.c.name, old.c.target)).all():
        only = [{"model": target, "defaults": {}}]
        connection.execute(sa.update(new).where(new.c.name == name).values(targets=only))
    with op.batch_alter_table("aliases") as batch:
        batch.drop_column("target")
