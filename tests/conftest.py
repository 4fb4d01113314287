"""For all tests."""

from serving.open_files import allow_many_files

# A shell on macOS allows 256 files, and a test may hold a thousand connections by both their ends.
allow_many_files()
