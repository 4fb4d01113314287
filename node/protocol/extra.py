"""Instructions for installing the optional part of this package that runs models."""

INSTALL_EXTRA = "pip install '.[node]'"
WHERE = "in your clone of mlx-fleet"
"""The package is in no package index."""
