"""Alembic's entry: runs migrations on the connection that the caller passes in.

It imports nothing of ours, so that old migrations keep working whatever the packages become.
`config.attributes` holds "connection", already in a transaction, and "metadata".
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=context.config.attributes["metadata"],
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
