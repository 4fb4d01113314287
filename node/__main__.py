"""The command `node-agent`, also as `python -m node`."""

from serving.terminal.interrupt import exit_interrupted


def main() -> None:
    try:
        # Importing the command takes a while, in which Ctrl-C is handled, too.
        from node.cli import main as run

        run()
    except KeyboardInterrupt as stop:
        exit_interrupted("node-agent", str(stop))


if __name__ == "__main__":
    main()
