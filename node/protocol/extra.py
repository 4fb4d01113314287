"""How the part of this package is installed that runs models."""

INSTALL_EXTRA = "pip install '.[node]'"
WHERE = "in your clone of mlx-fleet"
"""No package index has it."""
