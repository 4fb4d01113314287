"""The residency policies that admins have set."""

from __future__ import annotations

from collections.abc import Iterable

from registry.records import PolicyRecord


class PolicyTable:
    """Owns the policies, as they are in the registry, by model and node."""

    def __init__(self, records: Iterable[PolicyRecord]) -> None:
        self._records = {(each.model, each.node_id): each for each in records}

    @property
    def records(self) -> tuple[PolicyRecord, ...]:
        return tuple(self._records.values())

    def get(self, model: str, node_id: str) -> PolicyRecord:
        """Returns the policy; an empty node id is that of every node. Returns one without
        requirements if none is set."""
        nothing = PolicyRecord(model, node_id, pinned=False, keep_alive_s=None)
        return self._records.get((model, node_id), nothing)

    def put(self, record: PolicyRecord) -> None:
        """Replaces the policy; one without requirements is removed."""
        key = (record.model, record.node_id)
        if record.pinned or record.keep_alive_s is not None:
            self._records[key] = record
        else:
            self._records.pop(key, None)

    def forget_node(self, node_id: str) -> None:
        for key in [key for key in self._records if key[1] == node_id]:
            del self._records[key]
