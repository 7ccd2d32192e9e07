"""The report's page as people use it: by pointer, by keyboard, in the dark, on a phone, printed."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import best
from tests.report.unpacking import from_levels, unpacked

HERE = Path(__file__).parent
KINDS = ["Training steps", "Served models", "Compared with measured runs", "Simulated ranks"]
VIEW = "perfmodel.current()"


def tab(page, title):
    page.page.get_by_role("tab", name=title).click()


def chosen(page):
    """Return the text of the chosen row's panel."""
    return page.text(".panel:not([hidden]) .chosen-card")


def first_rows(page, column):
    """Return the cells of a column of the table of the best."""
    return page.page.evaluate(
        """name => {
          const table = document.querySelector(".panel:not([hidden]) .best");
          const heads = [...table.tHead.rows[0].cells].map((it) => it.textContent.trim());
          const at = heads.findIndex((it) => it.replace(/ [↑↓]$/, "") === name);
          return [...table.tBodies[0].rows].map((it) => it.cells[at].textContent);
        }""",
        column,
    )


def test_every_kind_is_drawn(report, watch):
    page = watch(report)
    for title in KINDS:
        tab(page, title)
        page.until("document.querySelectorAll('.panel:not([hidden]) .best tbody tr').length > 1")
        names = page.page.evaluate(
            "[...document.querySelectorAll('.panel:not([hidden]) section > header h2')]"
            ".map((it) => it.textContent)"
        )
        assert {"Every choice at once", "Heat map", "Side by side"} <= set(names)
        assert page.page.locator(".panel:not([hidden]) canvas").count() >= 3


def test_the_first_row_is_the_best_strategy(report, watch, swept):
    page = watch(report)
    (row,) = best(swept, 1)
    assert first_rows(page, "tp")[0] == str(row["tensor_parallel"])
    assert first_rows(page, "pp")[0] == str(row["pipeline_parallel"])
    assert first_rows(page, "hardware")[0] == row["hardware"]
    assert f"{row['step_time']:.4g} s" in first_rows(page, "step time")[0]


def test_a_filter_changes_table_charts_and_words(report, watch):
    page = watch(report)
    before, words = page.count(), page.text("section[aria-label=Trade-offs] > .note")
    page.until("document.querySelectorAll('.panel:not([hidden]) .heat td').length > 0")
    heat = page.page.text_content(".heat")
    page.page.get_by_role("group", name="tensor parallel").get_by_role(
        "button", name=re.compile("^2")
    ).click()
    after = page.count()
    assert 0 < after < before
    assert set(first_rows(page, "tp")) == {"2"}
    page.until(f"{VIEW}.filters.count", after)
    page.until("document.querySelector('.chips').textContent.includes('tensor parallel: 2')")
    note = "document.querySelector('section[aria-label=Trade-offs] > .note').textContent"
    page.until(f"{note}.startsWith('{after:,} points')")
    assert page.text("section[aria-label=Trade-offs] > .note") != words
    page.until(f"document.querySelector('.heat').textContent === {json.dumps(heat)}", False)
    page.page.get_by_role("button", name="Reset").click()
    assert page.count() == before


def test_what_does_not_fit_is_one_press_away(report, watch, swept):
    page = watch(report)
    fitting = int((swept["fits"].values & np.isfinite(swept["step_time"].values)).sum())
    assert page.count() == fitting
    page.page.get_by_role("button", name=re.compile("Drop the filter fits in memory")).click()
    assert page.count() == int(np.isfinite(swept["step_time"].values).sum())


def test_the_table_is_walked_and_chosen_from_by_keyboard(report, watch):
    page = watch(report)
    page.page.locator(".best tbody tr").first.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.page.keyboard.press(key)
    assert page.page.evaluate("document.activeElement.rowIndex") == 3
    wanted = page.page.evaluate("Number(document.activeElement.dataset.row)")
    page.until(f"{VIEW}.row", wanted)
    assert "3 of" in chosen(page)
    assert page.page.locator(".panel:not([hidden]) .best tr[aria-selected=true]").count() == 1


def test_the_front_is_walked_by_keyboard(report, watch):
    page = watch(report)
    page.page.locator(".mark").first.focus()
    page.page.keyboard.press("ArrowRight")
    label = page.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "tokens/s" in label
    assert page.page.locator(".tip").is_visible()
    wanted = page.page.evaluate("Number(document.activeElement.dataset.row)")
    page.page.keyboard.press("Enter")
    page.until(f"{VIEW}.row", wanted)
    page.until("document.querySelectorAll('.chosen').length", 1)


def test_the_pointer_finds_the_nearest_point(report, watch):
    page = watch(report)
    mark = page.page.locator(".mark").nth(1)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.until("Boolean(document.querySelector('.tip') && !document.querySelector('.tip').hidden)")
    page.page.mouse.click(box["x"] + 4, box["y"] + 4)
    page.until(f"{VIEW}.row", int(mark.get_attribute("data-row")))


def test_an_axis_is_a_filter_by_keyboard_and_by_drag(report, watch):
    page = watch(report)
    before = page.count()
    handle = page.page.get_by_role("slider", name="memory, to")
    handle.focus()
    for _ in range(8):
        page.page.keyboard.press("ArrowDown")
    by_keyboard = page.count()
    assert by_keyboard < before
    assert page.page.evaluate("document.activeElement.getAttribute('aria-label')") == "memory, to"
    assert "GiB" in page.page.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    assert "memory ≤" in page.text(".chips")
    page.page.keyboard.press("End")
    assert page.count() == before
    axis = page.page.get_by_role("slider", name="tensor parallel, from")
    axis.scroll_into_view_if_needed()
    low = axis.bounding_box()
    top = page.page.get_by_role("slider", name="tensor parallel, to").bounding_box()
    x, height = low["x"] + low["width"] / 2, low["y"] - top["y"]
    page.page.mouse.move(x, low["y"] - 0.2 * height)
    page.page.mouse.down()
    page.page.mouse.move(x, low["y"] - 0.5 * height, steps=4)
    page.page.mouse.up()
    assert "tensor parallel: 1, 2" in page.text(".chips")


def test_a_cell_of_the_heat_map_chooses_its_best(report, watch):
    page = watch(report)
    cell = page.page.locator(".heat .cell").first
    cell.focus()
    page.page.keyboard.press("ArrowRight")
    label = page.page.evaluate("document.activeElement.getAttribute('aria-label')")
    pipeline, tensor = re.search(r"tensor parallel (\d+), pipeline parallel (\d+)", label).groups()[
        ::-1
    ]
    page.page.keyboard.press("Enter")
    row = page.page.evaluate(f"{VIEW}.row")
    found = page.page.evaluate(
        f"(row) => ['pipeline_parallel', 'tensor_parallel']"
        f".map((it) => {VIEW}.population.get(it).text(row))",
        row,
    )
    assert found == [pipeline, tensor]


def test_waterfalls_add_up_and_are_tables(report, watch):
    page = watch(report)
    for title in KINDS[:2]:
        tab(page, title)
        sums = page.page.evaluate(
            """() => {
              const { population, row } = perfmodel.current();
              const value = (name) => population.get(name).value(row);
              return population.waterfalls.map((it) => [
                value(it.whole), it.parts.reduce((sum, part) => sum + value(part.name), 0)]);
            }"""
        )
        assert len(sums) == 2
        for whole, parts in sums:
            assert parts == pytest.approx(whole, rel=2e-6)
        shares = page.page.locator(".panel:not([hidden]) .waterfall").first.locator(
            "tbody tr:not(.total) td:last-child"
        )
        assert sum(float(it.split()[0]) for it in shares.all_inner_texts()) == pytest.approx(
            100, abs=0.5
        )


def test_the_command_projects_the_chosen_strategy_again(report, watch):
    from perfmodel.cli.main import cli

    page = watch(report)
    command = page.text(".command code").replace("\n", " ")
    step = page.page.evaluate(f"{VIEW}.population.get('step_time').value({VIEW}.row)")
    done = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["step_time"] == pytest.approx(step, rel=1e-6)


def test_pipelines_are_drawn_for_the_best(report, watch):
    page = watch(report)
    section = page.page.get_by_role("region", name="Pipeline of one step")
    section.scroll_into_view_if_needed()
    canvas = section.locator("canvas")
    # Other canvases may be drawn before this one, which is drawn once it is in view.
    section.locator("canvas[role=img][aria-label]").first.wait_for()
    assert "passes in" in canvas.get_attribute("aria-label")
    assert section.get_by_role("button", pressed=True).count() == 1
    section.get_by_text("Stages as a table").click()
    section.locator("table tbody tr").first.wait_for()  # visible once the details are open
    assert section.locator("table tbody tr").count() >= 1


def test_side_by_side_compares_any_choice(report, watch):
    page = watch(report)
    section = page.page.get_by_role("region", name="Side by side").first
    section.scroll_into_view_if_needed()
    page.until("document.querySelectorAll('.panel:not([hidden]) .sides tbody tr').length", 2)
    section.locator("select").select_option("recompute")
    page.until("document.querySelectorAll('.panel:not([hidden]) .sides tbody tr').length", 3)
    section.locator("tbody button").last.click()
    page.until("document.querySelectorAll('.sides tr.selected').length", 1)


@pytest.mark.parametrize("title", KINDS)
def test_nothing_is_wider_than_a_phone(report, watch, title):
    page = watch(report, width=360, height=740, has_touch=True, is_mobile=True)
    tab(page, title)
    page.until("document.documentElement.scrollWidth", 360)
    page.page.evaluate("document.querySelectorAll('details').forEach((it) => (it.open = true))")
    page.until("document.documentElement.scrollWidth", 360)


CONTRAST = (HERE / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("title", KINDS)
def test_texts_have_aa_contrast(report, watch, scheme, title):
    page = watch(report, scheme=scheme)
    tab(page, title)
    page.page.evaluate("document.querySelectorAll('details').forEach((it) => (it.open = true))")
    page.page.wait_for_timeout(400)
    seen, poor = page.page.evaluate(CONTRAST)
    assert seen > 100
    assert poor == []


def test_colours_follow_the_system_and_the_button(report, watch):
    page = watch(report, scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.page.evaluate(paper)
    button = page.page.get_by_role("button", name=re.compile("Theme"))
    button.click()
    assert "light" in button.inner_text()
    light = page.page.evaluate(paper)
    assert light != dark
    button.click()
    assert page.page.evaluate(paper) == dark


ROLES = (HERE / "roles.js").read_text(encoding="utf-8")


def test_everything_has_a_role_and_a_name(report, watch):
    page = watch(report)
    found = page.page.evaluate(ROLES)
    assert found["nameless"] == 0
    assert found["twice"] == []
    assert found["titles"] == 1
    assert all(found["landmarks"])
    assert found["tables"] == found["heads"] == found["hidden"] == 0
    assert found["lang"] == "en"


def test_focus_is_seen(report, watch):
    page = watch(report)
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.textContent") == "Skip to the results"
    for _ in range(3):
        page.page.keyboard.press("Tab")
        outline = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


def test_paper_is_white_and_has_no_controls(report, watch):
    page = watch(report, scheme="dark")
    page.page.emulate_media(media="print")
    page.until("getComputedStyle(document.body).backgroundColor", "rgb(255, 255, 255)")
    assert not page.page.get_by_role("button", name="Print").is_visible()
    assert page.page.locator(".best").first.is_visible()
    pdf = page.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") >= 2 or pdf.count(b"/Type/Page") >= 2 or len(pdf) > 50_000


def test_another_document_is_shown_without_loading_the_page(report, watch, served):
    from perfmodel.report.document import document

    page = watch(report)
    other = document([served], title="Another")
    page.page.evaluate("it => perfmodel.load(it)", other)
    assert page.text("h1") == page.page.title() == "Another"
    assert page.count() == other["populations"][0]["rows"]
    assert len(page.requests) == 1


def test_the_address_brings_back_what_was_filtered_and_chosen(report, watch):
    page = watch(report)
    page.page.evaluate(f"{VIEW}.filters.set('tensor_parallel', {{ allowed: new Set([1]) }})")
    page.page.evaluate(f"{VIEW}.filters.set('memory_total', {{ low: 1e9, high: 6e10 }})")
    page.page.locator(".best tbody tr").nth(1).click()
    page.until(f'decodeURIComponent(location.hash).includes(`"row":${{{VIEW}.row}}`)')
    wanted = [page.count(), page.page.evaluate(f"{VIEW}.row")]
    address = page.page.evaluate("location.hash")
    again = watch(report)
    again.page.goto("about:blank")
    again.open(report, address)
    assert [again.count(), again.page.evaluate(f"{VIEW}.row")] == wanted
    for nonsense in ("#%7B", "#[1]", '#{"filters":[["nothing",[1]]],"row":"x","rank":3}'):
        again.page.goto("about:blank")
        again.open(report, nonsense)
        assert again.count() > 0


def test_levels_are_as_python_has_them_and_marked(rough, watch):
    path, found = rough
    page = watch(path)
    (it,) = found["populations"]
    columns = {column["name"]: column for column in it["columns"]}
    rate, step = columns["tokens_per_second_per_device"], columns["step_time"]
    shown = np.array(page.page.evaluate(f"[...{VIEW}.population.get('{rate['name']}').values]"))
    expected = from_levels(rate["levels"])
    exact = unpacked(it["exact"]["rows"])
    expected[exact] = unpacked(it["exact"]["columns"][rate["name"]])
    np.testing.assert_allclose(shown, expected, rtol=1e-6)
    factors = np.array(step["ratio"]["factors"])[unpacked(step["ratio"]["codes"])]
    steps = np.array(page.page.evaluate(f"[...{VIEW}.population.get('step_time').values]"))
    others = np.setdiff1d(np.arange(it["rows"]), exact)
    np.testing.assert_allclose(steps[others], (factors / expected)[others], rtol=2e-6)
    page.page.get_by_role("button", name=re.compile("Show .* more")).click()
    cells = first_rows(page, "tokens/s/device")
    assert not cells[0].startswith("≈")
    assert any(cell.startswith("≈") for cell in cells)
    row = int(others[0])
    page.page.evaluate(f"{VIEW}.reset(); {VIEW}.filters.set('fits', null); {VIEW}.select({row})")
    assert "drawn in levels" in chosen(page)
    assert "drawn in levels" in page.text("section[aria-label=Trade-offs] > .note")


def test_markup_in_names_stays_text(compared_file, tmp_path, watch):
    from perfmodel import write_report

    title = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    path = tmp_path / "report.html"
    write_report(compared_file, path, title=title)
    page = watch(path)
    assert page.text("h1") == title
    assert "<b>x</b>, large" in first_rows(page, "model")
    assert page.page.locator("#page b").count() == 0


def test_motion_is_left_out_where_it_is_not_wanted(report, watch):
    page = watch(report, reduced_motion="reduce")
    moving = page.page.evaluate(
        "[...document.querySelectorAll('*')].filter((it) =>"
        " getComputedStyle(it).transitionDuration !== '0s').length"
    )
    assert moving == 0


def test_figures_alone_are_drawn_and_pointed_at(swept, compared_file, tmp_path, watch):
    from perfmodel import plot

    for source, kind in ((swept, "pareto"), (swept, "breakdown"), (compared_file, "accuracy")):
        path = tmp_path / f"{kind}.html"
        figure = plot(source, kind, title="A title", width="page")
        figure.save(path)
        page = watch(path)
        assert page.text("h1") == page.page.title() == "A title"
        assert page.page.locator("canvas").count() == len(figure.panels)
        titles = [axis.title for it in figure.panels for axis in (it.x, it.y) if axis.title]
        assert sorted(page.page.locator(".axis-title").all_text_contents()) == sorted(titles)
        box = page.page.locator(".chart").first.bounding_box()
        for share in np.linspace(0.3, 0.9, 40):
            x, y = box["x"] + share * box["width"], box["y"] + (1.0 - share) * box["height"]
            page.page.mouse.move(x, y)
            if page.page.locator(".tip:visible").count():
                break
        else:
            pytest.fail(f"nothing of the {kind} is found by the pointer")


def test_a_part_of_a_figure_is_seen_larger_and_all_of_it_again(swept, tmp_path, watch):
    from perfmodel import plot

    plot(swept, "pareto").save(tmp_path / "pareto.html")
    page = watch(tmp_path / "pareto.html")
    ticks = "[...document.querySelectorAll('.axis tspan')].map((it) => it.textContent).join()"
    whole = page.page.evaluate(ticks)
    box = page.page.locator(".chart").bounding_box()
    page.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.4 * box["height"])
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"])
    page.page.mouse.up()
    assert page.page.evaluate(ticks) != whole
    page.page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    assert page.page.evaluate(ticks) == whole


def test_a_heat_map_alone_is_a_table(swept, tmp_path, watch):
    from perfmodel import plot

    figure = plot(swept, "heatmap")
    figure.save(tmp_path / "heat.html")
    page = watch(tmp_path / "heat.html")
    (cells,) = figure.panels[0].marks
    texts = [it for line in cells.texts[::-1] for it in line if it and it != "–"]
    assert page.page.locator(".heat .cell").all_text_contents() == texts
