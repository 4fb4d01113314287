"""Servers of kind openai serve the models that an admin has accepted, to keys that may use them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """A server that is there has its last list accepted; a key goes where it went."""
    op.add_column("nodes", sa.Column("accepted", sa.JSON(), nullable=True))
    _accept_what_is_known()
    _let_keys_out()


def _accept_what_is_known() -> None:
    nodes = sa.table(
        "nodes",
        sa.column("id", sa.Text()),
        sa.column("kind", sa.Text()),
        sa.column("accepted", sa.JSON()),
    )
    residency = sa.table(
        "residency", sa.column("node_id", sa.Text()), sa.column("model", sa.Text())
    )
    connection = op.get_bind()
    servers = sa.select(nodes.c.id).where(nodes.c.kind == "openai")
    for (node_id,) in connection.execute(servers).all():
        known = sa.select(residency.c.model).where(residency.c.node_id == node_id)
        models = [model for (model,) in connection.execute(known.order_by(residency.c.model)).all()]
        connection.execute(sa.update(nodes).where(nodes.c.id == node_id).values(accepted=models))


def _let_keys_out() -> None:
    keys = sa.table("keys", sa.column("id", sa.Text()), sa.column("scopes", sa.JSON()))
    connection = op.get_bind()
    for key_id, scopes in connection.execute(sa.select(keys.c.id, keys.c.scopes)).all():
        if "inference" in scopes:
            wider = [*scopes, "external"]
            connection.execute(sa.update(keys).where(keys.c.id == key_id).values(scopes=wider))
