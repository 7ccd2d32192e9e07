"""Options made of tables of fields."""

from __future__ import annotations

import tomllib

import click
import pytest
from click.testing import CliRunner

from perfmodel.cli.group import Command
from perfmodel.cli.shared import fields

TABLES = {path.parent.name: path for path in sorted(fields.FOLDER.glob(f"*/{fields.FILE}"))}


def test_every_wing_has_a_table():
    assert set(TABLES) >= {"core", "shared", "workloads", "wafer", "measured", "report"}


@pytest.mark.parametrize("wing", TABLES)
def test_every_row_of_a_table_makes_an_option(wing):
    for table, rows in tomllib.loads(TABLES[wing].read_text(encoding="utf-8")).items():
        found = fields.fields_of(f"{wing}.{table}")
        assert list(found) == list(rows)
        for field in found.values():
            assert field.kind in fields.TYPES, field.name
            assert field.description, field.name


@pytest.fixture
def command(monkeypatch):
    table = {
        "count": {"kind": "int", "minimum": 1, "default": 3, "description": "How many."},
        "names": {"kind": "names", "spellings": ["-n", "--names"], "description": "Which."},
        "loud": {"kind": "flag", "description": "Say more."},
    }
    monkeypatch.setattr(fields, "_document", lambda wing: {"made": table})
    fields.fields_of.cache_clear()

    @click.command(cls=Command)
    @fields.options_of("core.made", "count", "names", "loud")
    def made(count, names, loud):
        click.echo(repr((count, names, loud)))

    yield made
    fields.fields_of.cache_clear()


def test_values_are_read_and_checked(command):
    run = CliRunner()
    assert run.invoke(command, []).output == "(3, None, False)\n"
    given = ["--count", "2", "-n", "a,b", "--names", "b", "--loud"]
    assert run.invoke(command, given).output == "(2, ['a', 'b'], True)\n"
    refused = run.invoke(command, ["--count", "0"])
    assert refused.exit_code == 2
    assert "--count" in refused.output


def test_the_help_page_has_words_defaults_and_order(command):
    text = CliRunner().invoke(command, ["--help"]).output
    places = [text.index(word) for word in ("How many.", "Which.", "Say more.")]
    assert places == sorted(places)
    assert "[default: 3" in text
