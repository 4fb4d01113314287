"""`python -m node` is `node-agent`."""

from node.cli import main

if __name__ == "__main__":
    main()
