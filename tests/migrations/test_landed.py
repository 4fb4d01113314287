from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import migrations

VERSIONS = Path(migrations.__file__).parent / "versions"

# A landed migration never changes, since databases in the field have run it as it was.
LANDED = {
    "0001_initial.py": "2e007a9b2f2144474bb78bec7ca43bad568726293ab1e43b44a221d6e0dc76f3",
    "0002_key_classes.py": "9e944905469c2a314c845e2fe55f2ef73191199054ceb1ed6c4401beccba1e01",
    "0003_foreign_rows.py": "acfc6a2076e7b7d8ea3ee00790f1fd7f9876f562712e641d347c900b8b13c3f2",
    "0005_accepted_models.py": "47c670a878b617603b0b383643f8492bad6bf26203cdfb38c915c3daecae93b7",
    "0004_lifecycle.py": "19063bbf5154c59c5d720bf56f0443a8f3dd5b21afcc0e69d78d9b6bd104fa54",
    "0006_teams_and_limits.py": "f5430e6038d3753643bb2a75bc09ff69d13adaa07452310788b367420e4e6164",
    "0008_waking.py": "eb5f2ec5719c9baf4f4746af264aa0ebb894c9437bb92e87bd57da7da78faac0",
}


def test_landed_migrations_are_unchanged_and_every_one_is_pinned() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VERSIONS.glob("*.py")
    }
    assert found == LANDED


def test_migrations_import_nothing_of_ours() -> None:
    for path in VERSIONS.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.partition(".")[0] for name in names}
            assert roots <= {"__future__", "alembic", "sqlalchemy"}, path
