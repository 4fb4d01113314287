"""The modules that `make wheel` compiles: `python -m tests.compiled` ends with 1 where one of them
is not compiled in the tree that it runs in."""

import importlib.util
import sys
import tomllib
from pathlib import Path

TREE = Path(__file__).parent.parent
EXTENSION = ".so"


def listed() -> list[str]:
    """The modules that pyproject.toml names for compilation."""
    settings = tomllib.loads((TREE / "pyproject.toml").read_text())
    hook = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    paths = [path for pattern in hook["include"] for path in TREE.glob(pattern.lstrip("/"))]
    names = (path.relative_to(TREE).with_suffix("") for path in paths if path.suffix == ".py")
    return sorted(".".join(name.parts) for name in names if name.name != "__init__")


def is_compiled(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None and spec.origin.endswith(EXTENSION)


def main() -> int:
    modules = listed()
    missing = [each for each in modules if not is_compiled(each)]
    for each in missing:
        sys.stderr.write(f"{each} is not compiled.\n")
    sys.stdout.write(f"{len(modules) - len(missing)} of {len(modules)} modules are compiled.\n")
    return 1 if missing or not modules else 0


if __name__ == "__main__":
    sys.exit(main())
