"""Names of files that agent and engine both use in one folder."""

POSITIONS_NAME = "positions.msgpack"
"""The agent's record of the files of a disk tier, in the tier's folder."""
