"""The command `router`, also as `python -m router`."""

from serving.terminal.interrupt import exit_interrupted


def main() -> None:
    try:
        # Ctrl-C may arrive before the command has been imported.
        from router.cli.main import main as run

        run()
    except KeyboardInterrupt as stop:
        exit_interrupted("router", str(stop))


if __name__ == "__main__":
    main()
