"""The first schema: nodes, models, aliases, residency, keys, usage, audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Make all tables."""
    _fleet()
    _keys()
    _records()


def _fleet() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
        sa.UniqueConstraint("name", name="uq_nodes_name"),
        sa.UniqueConstraint("url", name="uq_nodes_url"),
    )
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("context_tokens", sa.BigInteger(), nullable=True),
        sa.Column("weight_bytes", sa.BigInteger(), nullable=True),
        sa.Column("first_seen_at_s", sa.Double(), nullable=False),
        sa.Column("last_seen_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_models"),
    )
    op.create_table(
        "aliases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_aliases"),
    )
    op.create_table(
        "residency",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("weight_bytes", sa.BigInteger(), nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", "model", name="pk_residency"),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name="fk_residency_node_id_nodes", ondelete="CASCADE"
        ),
    )


def _keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=True),
        sa.Column("revoked_at_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
    unrevoked = sa.text("revoked_at_s IS NULL")
    op.create_index(
        "uq_keys_active_name",
        "keys",
        ["name"],
        unique=True,
        sqlite_where=unrevoked,
        postgresql_where=unrevoked,
    )


def _records() -> None:
    op.create_table(
        "usage",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("queue_s", sa.Double(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("prefill_s", sa.Double(), nullable=True),
        sa.Column("decode_s", sa.Double(), nullable=True),
        sa.Column("finished_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", "request_id", name="pk_usage"),
    )
    op.create_index("ix_usage_finished_at_s", "usage", ["finished_at_s"])
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
