"""The template of a settings file, of both products."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import node.commands.config
import node.settings
import router.commands.home.config
import router.settings
from serving.config_file import key_of, read_file
from serving.config_template import template
from serving.setting import Environment, Sections, settings_of

PRODUCTS = [
    (router.settings.ENVIRONMENT, router.commands.home.config.SECTIONS),
    (node.settings.ENVIRONMENT, node.commands.config.SECTIONS),
]


@pytest.mark.parametrize(("product", "sections"), PRODUCTS, ids=["router", "node"])
def test_the_sections_have_every_setting_once(product: Environment, sections: Sections) -> None:
    listed = [name for _, names in sections for name in names]
    assert sorted(listed) == sorted(settings_of(product.settings))


@pytest.mark.parametrize(("product", "sections"), PRODUCTS, ids=["router", "node"])
def test_a_template_changes_nothing(
    product: Environment, sections: Sections, tmp_path: Path
) -> None:
    text = template(product, sections)
    assert tomllib.loads(text) == {}
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("product", "sections"), PRODUCTS, ids=["router", "node"])
def test_each_line_of_a_template_is_valid_without_its_mark(
    product: Environment, sections: Sections, tmp_path: Path
) -> None:
    """Values that are defaults are those of the class."""
    text = re.sub(r"^# (\w+ = )", r"\1", template(product, sections), flags=re.MULTILINE)
    path = tmp_path / "config.toml"
    path.write_text(text)
    found = read_file(path, product.settings)
    assert found.problems == ()
    declared = settings_of(product.settings)
    assert {*found.values} == {*declared} - {"home"}
    for field in fields(product.settings):
        if field.name != "home" and field.default not in (None, "", ()):
            assert found.values[field.name] == field.default, field.name
    assert all(key_of(name, each) in text for name, each in declared.items() if name != "home")
