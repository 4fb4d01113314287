"""The registry's tables, in types that SQLite and PostgreSQL share.

A change here needs a new file in `migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

# Every constraint has a name, since a batch migration can only drop what it can name.
metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("url", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("credential", Text, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("max_rows", Integer),
    Column("state", Text, nullable=False, server_default="active"),
    Column("prices", JSON),
    Column("accepted", JSON),
    Column("wake_mac", Text),
    Column("macs", JSON),
    Column("wakes", Boolean, nullable=False, server_default="0"),
)

models = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("context_tokens", BigInteger),
    Column("weight_bytes", BigInteger),
    Column("first_seen_at_s", Double, nullable=False),
    Column("last_seen_at_s", Double, nullable=False),
)

aliases = Table(
    "aliases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at_s", Double, nullable=False),
    Column("targets", JSON, nullable=False, server_default="[]"),
    Column("selector", Text, nullable=False, server_default="first"),
    Column("spill_at", Integer),
)

# An empty node_id is every node, so that there is no foreign key.
policies = Table(
    "policies",
    metadata,
    Column("model", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("pinned", Boolean, nullable=False),
    Column("keep_alive_s", Double),
)

# An empty node_id is whichever node is best.
schedules = Table(
    "schedules",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("node_id", Text, nullable=False),
    Column("load_cron", Text),
    Column("unload_cron", Text),
    Column("timezone", Text, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("load_fired_s", Double),
    Column("unload_fired_s", Double),
    Column("pending", Text),
)

residency = Table(
    "residency",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("weight_bytes", BigInteger, nullable=False),
    Column("since_s", Double, nullable=False),
)

# A deleted team stays as a row, so that usage can name it.
teams = Table(
    "teams",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("limits", JSON, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("deleted_at_s", Double),
)

Index(
    "uq_teams_active_name",
    teams.c.name,
    unique=True,
    sqlite_where=teams.c.deleted_at_s.is_(None),
    postgresql_where=teams.c.deleted_at_s.is_(None),
)

# `old_digest` is that of a rotated key's secret before, until `old_until_s`. No foreign key to the
# team, since SQLite can add none to a table that exists.
keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("scopes", JSON, nullable=False),
    Column("created_at_s", Double, nullable=False),
    Column("expires_at_s", Double),
    Column("revoked_at_s", Double),
    Column("priority", Text, nullable=False, server_default="default"),
    Column("salt", Text, nullable=False, server_default=""),
    Column("paid_budget", Double),
    Column("team_id", Text),
    Column("models", JSON),
    Column("limits", JSON, nullable=False, server_default="{}"),
    Column("old_digest", Text),
    Column("old_prefix", Text),
    Column("old_until_s", Double),
    Column("rotated_at_s", Double),
)

# A revoked key gives its name free, so that a rotated key can keep it.
Index(
    "uq_keys_active_name",
    keys.c.name,
    unique=True,
    sqlite_where=keys.c.revoked_at_s.is_(None),
    postgresql_where=keys.c.revoked_at_s.is_(None),
)

# No foreign keys: usage outlives the node and the key it names.
usage = Table(
    "usage",
    metadata,
    Column("node_id", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("instance_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("queue_s", Double),
    Column("ttft_s", Double),
    Column("prefill_s", Double),
    Column("decode_s", Double),
    Column("finished_at_s", Double, nullable=False, index=True),
    Column("cost", Double),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at_s", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("client", Text, nullable=False, server_default=""),
    Column("outcome", Text, nullable=False, server_default="done"),
)
