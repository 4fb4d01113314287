"""Names of files that agent and engine keep in one folder."""

POSITIONS_NAME = "positions.msgpack"
"""What an agent knows of the files of a disk tier, beside them."""
