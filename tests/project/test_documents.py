"""The documents name every field, rule and variable that there is."""

import re
import tomllib

import click
import pytest

from perfmodel import strategies_from_rows
from perfmodel.analysis.explain import operation_costs
from perfmodel.base.facts import HEADER, text_of
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.cli.main import cli
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.kernels.variables import COSTS, VARIABLES
from perfmodel.serving import grid as serving_rules
from perfmodel.software.framework import FOLDER, FRAMEWORKS, IDENTITY
from perfmodel.strategy.rules import STATUS_NAMES, STATUS_REASONS
from tests.data import DOCS, ROOT

README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="an installed package has no docs folder")


def test_strategies_name_every_field_and_rule():
    text = (DOCS / "strategies.md").read_text()
    for field in FIELDS:
        assert f"| `{field.name}` | `--{field.option}` |" in text
        assert all(choice in text for choice in field.choices)
    for code, name in STATUS_NAMES.items():
        assert f"| {code} | `{name}` | {STATUS_REASONS[code]} |" in text


def test_results_name_every_variable_with_its_units():
    text = (DOCS / "results.md").read_text()
    served = {**serving_variables.VARIABLES, **serving_variables.COSTS}
    for variable in (*VARIABLES.values(), *COSTS.values(), *served.values()):
        assert f"| `{variable.name}` | {variable.units} | {variable.long_name} |" in text


def test_serving_names_every_status():
    text = (DOCS / "serving.md").read_text()
    assert all(
        f"`{name}`" in text for name in serving_rules.STATUS_NAMES.values() if name != "valid"
    )


def preset_line(name: str) -> str:
    """Return a preset's line of the table in docs/software.md."""
    document = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    base = document.get("extends", "")
    own = {key: it for key, it in document.items() if key not in (*HEADER, *IDENTITY)}
    facts = ", ".join(f"`{key}` {text_of(it)}" for key, it in own.items()) if base else "all"
    if document.get("when"):
        facts = "; ".join(filter(None, (facts, "some for some runs only")))
    cells = (f"`{name}`", document.get("released", ""), document["title"])
    return f"| {' | '.join(cells)} | {f'`{base}`' if base else ''} | {facts} |"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_software_tells_what_every_preset_states(name):
    assert preset_line(name) in (DOCS / "software.md").read_text().splitlines()


def test_the_command_line_names_every_command():
    text = (DOCS / "cli.md").read_text()
    for name, command in cli.commands.items():
        assert f"perfmodel {name}" in text
        for inner in command.commands if isinstance(command, click.Group) else ():
            pages = "".join(page.read_text() for page in sorted(DOCS.glob("*.md")))
            assert f"{name} {inner}" in pages or f"`{inner}`" in pages, (name, inner)


PLACE = re.compile(r"`((?:perfmodel|kernels|hwprofiles|cli|tests|benchmarks|docs)/[\w./*-]*)`")


@pytest.mark.skipif(
    not (ROOT / "perfmodel").is_dir(), reason="an installed package has no sources beside the tests"
)
@pytest.mark.parametrize("path", sorted((*DOCS.rglob("*.md"), README)), ids=lambda path: path.name)
def test_every_place_that_a_document_names_is_there(path):
    for place in PLACE.findall(path.read_text()):
        assert list(ROOT.glob(place.rstrip("/"))), place


LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.M)
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINKING = sorted(
    (
        README,
        *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
        *DOCS.rglob("*.md"),
    )
)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{n}" if n else slug for slug, count in found.items() for n in range(count + 1)}


def test_anchors_are_those_of_github():
    text = "# A `b`, c\n```\n# no heading\n```\n## Step-by_step (2)\n## A [b](x.md), c\n"
    assert anchors(text) == {"a-b-c", "step-by_step-2", "a-b-c-1"}


@pytest.mark.parametrize("page", LINKING, ids=lambda path: path.name)
def test_every_link_and_anchor_leads_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_the_way_of_one_number_is_as_the_architecture_page_tells_it(llama_8b, h100):
    strategy = {
        "tensor_parallel": 8,
        "pipeline_parallel": 2,
        "global_batch_size": 256,
        "sequence_length": 4096,
    }
    grid = strategies_from_rows(llama_8b, 64, [strategy])
    (product,) = [
        cost
        for cost in operation_costs(llama_8b, grid, h100)
        if (cost.part, cost.name, cost.phase) == ("layer0", "mlp.up", "forward")
    ]
    text = (DOCS / "architecture.md").read_text()
    assert f"**{1e6 * product.time:.1f} µs**" in text
    assert f"**{1e3 * product.exposed:.1f} ms**" in text
