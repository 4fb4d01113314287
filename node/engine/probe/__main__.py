"""`python -m node.engine.probe SECTION [FOLDER] [NUMBER]`: prints the lines of a section as JSON,
each as soon as it is known. It runs in a process of its own, since a probe may crash it."""

import sys
from collections.abc import Iterator

import msgspec

from node.engine.model.blas import load_fast_blas
from node.engine.probe.line import Line
from serving.terminal.output import put_json


def main(arguments: list[str]) -> None:
    # Before MLX is imported, as in an engine's process.
    load_fast_blas()
    from node.engine.probe.sections import lines

    _print(lines(arguments[0], arguments[1:]))


def _print(found: Iterator[Line]) -> None:
    for line in found:
        put_json(msgspec.json.encode(line).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
