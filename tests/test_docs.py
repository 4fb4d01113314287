"""Every command, option, setting, error code, path and field stands in the documentation."""

import ast
import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import node.errors
import node.settings
import router.errors
import router.settings
import serving.http.refusals
from node.agent.metrics import NodeMetrics
from node.engine.scripted.script import Script
from router.api.bodies import PROMPT_FIELDS
from router.api.v1 import RELAYED_PATHS
from router.records.metrics import Metrics
from router.routing.request_hints import ROUTING_HEADERS
from serving.config_file import key_of
from serving.setting import option_of, settings_of
from tests.command_lines import ALL_COMMANDS, options_of
from tests.doc_tables import (
    DOCS,
    FIELD_TABLES,
    HOW_TO_WRITE,
    PAGES,
    command_page,
    field_names,
    table_names,
    with_tables,
)


def page(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.mark.parametrize(("path", "command"), ALL_COMMANDS, ids=[path for path, _ in ALL_COMMANDS])
def test_every_command_and_option_is_documented(path: str, command: Any) -> None:
    name = command_page(path)
    text = page(name)
    start = text.find(f"### `{path}")
    assert start >= 0, f"docs/{name} has no section for {path}"
    section = text[start : text.find("\n### ", start + 1)]
    options = [option for each in options_of(command) for option in each.opts]
    assert [option for option in options if option not in section] == []


def test_the_command_lines_have_verbs() -> None:
    assert len(ALL_COMMANDS) > 20


@pytest.mark.parametrize(
    ("prefix", "settings"),
    [
        ("MLX_FLEET_NODE_", node.settings.Settings),
        ("MLX_FLEET_ROUTER_", router.settings.Settings),
    ],
)
def test_every_setting_is_documented_with_its_option_and_variable(
    prefix: str, settings: Any
) -> None:
    rows = page("reference/settings.md").splitlines()
    missing = [
        name
        for name, each in settings_of(settings).items()
        if not any(
            f"`{prefix}{name.upper()}`" in row
            and f"`{option_of(name, each).partition('/')[0]}`" in row
            for row in rows
        )
    ]
    assert missing == []


@pytest.mark.parametrize("settings", [node.settings.Settings, router.settings.Settings])
def test_every_setting_that_a_reload_changes_is_documented(settings: Any) -> None:
    (text,) = re.findall(r"^\*\*A reload\*\* .*?\n\n", page("reference/settings.md"), re.M | re.S)
    live = [key_of(name, each) for name, each in settings_of(settings).items() if each.is_live]
    assert live and [key for key in live if f"`{key}`" not in text] == []


def tree(base: Any) -> Iterator[Any]:
    yield base
    for child in base.__subclasses__():
        yield from tree(child)


def import_everything(package: Any) -> None:
    """All modules but those of engine processes, so that every subclass is known."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(("node.engine", "node.engine.worker")):
            importlib.import_module(module.name)


@pytest.mark.parametrize(
    ("package", "base"),
    [
        (node, node.errors.NodeError),
        (router, router.errors.RouterError),
        (serving, serving.http.refusals.Refusal),
    ],
    ids=["node", "router", "serving"],
)
def test_every_error_code_is_documented_with_its_status(package: Any, base: Any) -> None:
    import_everything(package)
    text = page("reference/errors.md")
    missing = [
        each.__name__
        for each in tree(base)
        if not each.__name__.startswith("_") and f"| {each.status} | `{each.code}` |" not in text
    ]
    assert missing == []


@pytest.mark.parametrize(
    "path",
    [
        *sorted(RELAYED_PATHS),
        "/v1/responses/{id}",
        "/v1/responses/{id}/cancel",
        "/v1/responses/{id}/input_items",
        "/v1/models",
        "/v1/models/{id}",
        "/v1/requests",
        "/v1/requests/{id}",
        "/v1/node/status",
        *sorted(PROMPT_FIELDS),
        "/api/tags",
        "/api/show",
        "/api/ps",
        "/api/version",
        "/api/pull",
        "/health",
        "/ready",
        "/fleet/status",
        "/fleet/events",
        "/fleet/load",
        "/fleet/unload",
        "/fleet/warm",
        "/fleet/cache/clear",
        "/fleet/logs",
        "/admin/nodes",
        "/admin/models",
        "/admin/aliases",
        "/admin/keys",
        "/admin/usage",
        "/admin/audit",
        "/admin/backup",
        "/admin/reload",
        "/admin/explain",
        "/admin/explain/{request_id}",
        "/metrics",
        "/metrics/nodes/{name}",
        "/scripted",
    ],
)
def test_every_path_is_documented(path: str) -> None:
    names = ("api", "ollama", "admin-api", "metrics")
    text = "".join(page(f"reference/{name}.md") for name in names)
    assert f" {path}`" in text or f" {path}?" in text


def test_every_metric_is_documented() -> None:
    told = Metrics(str).text().decode()
    names = re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE)
    assert len(names) > 5
    text = page("reference/metrics.md")
    assert [name for name in names if f"| `{name}` |" not in text] == []


def test_every_metric_of_an_agent_is_documented() -> None:
    budget = SimpleNamespace(total_bytes=1, leased_bytes=0, stored_bytes=0)
    idle = SimpleNamespace(budget=budget, pressure=0, status=list, engines=dict)
    told = NodeMetrics(cast(Any, idle)).text().decode()
    names = re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE)
    assert len(names) > 20
    text = page("reference/metrics.md")
    assert [name for name in names if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize("header", sorted(ROUTING_HEADERS))
def test_every_header_that_routes_a_request_is_documented(header: bytes) -> None:
    text = page("reference/headers.md")
    text = text[text.index("## Headers of a request") : text.index("## Headers of a response")]
    assert f"`{header.decode()}`" in text


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_its_tables_as_the_code_tells_them(name: str) -> None:
    text = page(name)
    assert sorted(table_names(text)) == sorted(PAGES[name])
    as_told = with_tables(name, text) == text
    assert as_told, f"the tables of docs/{name} are not those of the code: {HOW_TO_WRITE}"


@pytest.mark.parametrize("name", FIELD_TABLES)
def test_a_field_is_either_applied_or_refused_or_ignored(name: str) -> None:
    table = FIELD_TABLES[name]
    groups = [set(field_names(table)), set(table.refused), set(table.ignored)]
    assert set(table.notes) == groups[0]
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_the_messages_that_the_operations_guide_quotes_exist() -> None:
    quoted = re.findall(r"\"((?:has|took) [^\"\d]+)", page("guides/operations.md"))
    assert len(quoted) > 3
    text = "".join(path.read_text() for path in (DOCS.parent / "router").rglob("*.py"))
    assert [each for each in quoted if each.strip() not in text] == []


def test_every_field_of_a_script_is_documented() -> None:
    text = page("reference/settings.md")
    text = text[text.index("## The script of the scripted engine") :]
    assert [name for name in Script.__struct_fields__ if f"`{name}`" not in text] == []


README = DOCS.parent / "README.md"
PAGES_WITH_LINKS = [*sorted(DOCS.parent.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("path", PAGES_WITH_LINKS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)]*)\)", path.read_text())
    assert [target for target in targets if not leads_somewhere(path, target)] == []


def leads_somewhere(path: Path, target: str) -> bool:
    """Returns True if a link in the page at `path` names a page, and within it a heading."""
    file, _, anchor = target.partition("#")
    linked = path.parent / file if file else path
    if not linked.exists():
        return False
    return not anchor or anchor in {anchor_of(each) for each in headings(linked.read_text())}


@pytest.mark.parametrize("path", PAGES_WITH_LINKS, ids=lambda path: path.name)
def test_a_source_file_that_a_page_names_exists(path: Path) -> None:
    roots = "router|node|registry|serving|migrations|tests"
    named = re.findall(rf"`((?:{roots})/[\w/.-]+\.py)`", path.read_text())
    assert [each for each in named if not (DOCS.parent / each).exists()] == []


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", text, re.MULTILINE)


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "python": ast.parse,
    "toml": tomllib.loads,
}
BLOCKS = [
    (path, kind, text)
    for path in PAGES_WITH_LINKS
    for kind, text in re.findall(
        r"^```(\w+)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE
    )
    if kind in READERS
]


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for _, kind, text in BLOCKS],
    ids=[f"{path.name}-{kind}-{at}" for at, (path, kind, _) in enumerate(BLOCKS)],
)
def test_a_block_of_code_can_be_read(kind: str, text: str) -> None:
    READERS[kind](text)


PAGE_BYTES = 25 * 1024
README_BYTES = 12 * 1024
GLOSSARY_TERMS = 60
GENERATED = {"reference/fields.md", "reference/policy-results.md"}
"""Pages that consist of what a script writes; each says so, and by which command."""


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_a_page_that_people_write_can_be_read_in_one_sitting(path: Path) -> None:
    if path.relative_to(DOCS).as_posix() in GENERATED:
        assert "`python -m tests." in path.read_text()
    else:
        assert path.stat().st_size <= PAGE_BYTES


def test_the_readme_is_short() -> None:
    assert README.stat().st_size <= README_BYTES


def test_the_glossary_has_few_terms() -> None:
    rows = re.findall(r"^\| (?!term |--)", page("glossary.md"), re.MULTILINE)
    assert 40 <= len(rows) <= GLOSSARY_TERMS


README_LINES = [
    line.split("#")[0].split()
    for block in re.findall(r"^```\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith(("make ", "router ", "node-agent "))
]


@pytest.mark.parametrize("words", README_LINES, ids=" ".join)
def test_a_command_of_the_readme_exists(words: list[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (DOCS.parent / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        return
    known = [
        (path, each) for path, each in ALL_COMMANDS if words[: path.count(" ") + 1] == path.split()
    ]
    ((_, command),) = known
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_the_readme_begins_with_the_two_commands() -> None:
    assert [words for words in README_LINES if words[0] == "make" and len(words) == 2][:2] == [
        ["make", "run"],
        ["make", "test"],
    ]


def test_the_readme_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\(docs/([^)#]*)", README.read_text()))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {name for name in pages - linked if not name.startswith("decisions/")} == set()


def test_the_list_of_decisions_has_each_by_its_title() -> None:
    folder = DOCS / "decisions"
    listed = re.findall(r"^- \[(\d+)\]\((.*?)\): (.*)$", (folder / "README.md").read_text(), re.M)
    titles = [
        (*re.findall(r"^# (\d+)\. ", text), path.name, text.splitlines()[0].partition(". ")[2])
        for path in sorted(folder.glob("0*.md"))
        for text in [path.read_text()]
    ]
    assert listed == titles


def test_the_changelog_tells_of_this_version() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    assert f"## [{project['version']}]" in (DOCS.parent / "CHANGELOG.md").read_text()
