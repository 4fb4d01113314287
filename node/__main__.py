"""The command `node-agent`, also as `python -m node`."""

from serving.terminal.interrupt import leave


def main() -> None:
    try:
        # Ctrl-C may come before the command has been imported.
        from node.cli import main as run

        run()
    except KeyboardInterrupt as stop:
        leave("node-agent", str(stop))


if __name__ == "__main__":
    main()
