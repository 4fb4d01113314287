from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

import migrations

FOLDER = Path(migrations.__file__).parent


def script(folder: Path) -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return ScriptDirectory.from_config(config)


def test_history_is_one_line_and_files_carry_their_revision() -> None:
    revisions = list(script(FOLDER).walk_revisions())
    assert [revision.revision for revision in revisions] == sorted(
        (revision.revision for revision in revisions), reverse=True
    )
    for revision in revisions:
        assert Path(revision.path).name.startswith(f"{revision.revision}_")
    below = [revision.down_revision for revision in revisions]
    assert below == [*(revision.revision for revision in revisions[1:]), None]


def test_the_template_writes_a_migration_that_compiles(tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    template = (FOLDER / "script.py.mako").read_text()
    (tmp_path / "script.py.mako").write_text(template)
    made = script(tmp_path).generate_revision("0002", "add a thing", file_template="x")
    assert made is not None
    text = Path(made.path).read_text()
    compile(text, made.path, "exec")
    assert "revision: str = '0002'" in text or 'revision: str = "0002"' in text
