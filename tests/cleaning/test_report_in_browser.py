"""The report in Chromium: it opens in silence, sorts, runs nothing of the user's, and suits eyes and small screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.browser import contrast, luminance, running_chromium, silent_windows

from bilevel.cleaning.report import render_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def open_page(chromium, tmp_path) -> Iterator[Any]:
    with silent_windows(chromium) as open_file:

        def open_(result: Any, **window: Any) -> Any:
            path = Path(tmp_path, "report.html")
            path.write_text(render_report(result), encoding="utf-8")
            return open_file(path, **window)

        yield open_


def column(page: Any, place: int) -> list[str]:
    return page.locator(f"#rows tbody tr td:nth-child({place})").all_inner_texts()


def test_it_opens_in_silence(open_page, make_result):
    page = open_page(make_result())
    assert page.title() == "Suspected labels in train.csv"
    assert page.locator("svg").count() == 3
    assert all(page.locator("svg").nth(i).bounding_box()["height"] > 80 for i in range(3))


def test_the_table_sorts(open_page, make_result):
    page = open_page(make_result())
    row, given, quality, height = 1, 2, 4, 5

    def numbers(place: int) -> list[float]:
        cells = page.locator(f"#rows tbody tr td:nth-child({place})")
        return [
            float(text) for text in cells.evaluate_all("all => all.map(cell => cell.dataset.number || cell.innerText)")
        ]

    def click(name: str) -> None:
        page.get_by_role("button", name=name, exact=True).click()

    assert numbers(quality) == sorted(numbers(quality))
    click("row")
    assert numbers(row) == list(range(1, 101))
    assert page.locator("#rows th[aria-sort]").all_inner_texts() == ["row"]
    click("row")
    assert numbers(row) == list(range(300, 200, -1))
    assert page.locator("#rows th[aria-sort=descending]").count() == 1
    click("height")
    assert numbers(height) == sorted(numbers(height))
    assert numbers(height)[0] < 0
    click("given label")
    assert column(page, given) == sorted(column(page, given))
    assert column(page, given)[0] == "ash"
    page.get_by_role("button", name="quality").focus()
    page.keyboard.press("Enter")
    assert numbers(quality) == sorted(numbers(quality))


def test_rows_are_filtered_by_class_and_text(open_page, make_result):
    result = make_result()
    page = open_page(result)
    given = result.rows["given_label"]
    assert "300 of 300 rows; 100 are shown." in page.locator("#found").inner_text()
    page.locator("#class").select_option("fir")
    assert f"{(given == 'fir').sum()} of 300 rows" in page.locator("#found").inner_text()
    page.get_by_label("suspected labels only").check()
    both = (given == "fir") & result.rows["is_label_issue"]
    assert f"{both.sum()} of 300 rows" in page.locator("#found").inner_text()
    page.get_by_label("Search").fill("17")
    shown = page.locator("#rows tbody tr").all_inner_texts()
    assert shown
    assert all("17" in text for text in shown)
    page.get_by_label("Search").fill("no such text")
    assert page.locator("#rows tbody tr").count() == 0
    page.get_by_label("Search").fill("")
    page.get_by_label("suspected labels only").uncheck()
    page.locator("#class").select_option("")
    page.get_by_role("button", name="Show more").click()
    assert page.locator("#rows tbody tr").count() == 300


@pytest.fixture
def reviewed(forest, chromium):
    """Cleans the forest with a report, whose rows `check` decides by keys; returns the file of decisions."""

    def check(decide: Any, *arguments: str, count: int = 30) -> Path:
        from bilevel import cli

        command = ["clean", "train.csv", "--label", "species", "--trusted", "trusted.csv", "--report", "r.html"]
        assert cli.main([*command, "--force", "--out", "w.csv", *arguments]) == 0
        context = chromium.new_context(accept_downloads=True)
        page = context.new_page()
        page.goto((forest.folder / "r.html").as_uri())
        for _ in range(count):
            row = int(page.locator("#card h3").inner_text().split()[1])
            page.keyboard.press(decide(row - 1))
        with page.expect_download() as download:
            page.get_by_role("button", name="Save decisions").click()
        path = forest.folder / "decisions.csv"
        download.value.save_as(path)
        context.close()
        return path

    return check


def test_decisions_by_keyboard_are_taken_back(forest, reviewed, chromium, capsys):
    others = {"fir": "3", "ash": "2", "oak": "1"}  # keys of ash, fir and oak: what labels were before they were changed

    def key(place: int) -> str:
        return others[forest.frame["species"][place]] if forest.wrong[place] else "r"

    path = reviewed(key)
    found = pd.read_csv(path)
    assert list(found) == ["row", "given_label", "verified_label", "verdict", "drawn_at_random"]
    assert len(found) == 30
    assert (found["drawn_at_random"] == "yes").sum() == 10
    places = found["row"] - 1
    assert ((found["verdict"] == "wrong") == forest.wrong[places]).all()
    assert (found["given_label"] == forest.frame["species"][places].to_numpy()).all()
    before = pd.read_csv(forest.folder / "w.csv")
    again = reviewed(lambda place: "u", "--verified", "decisions.csv", count=2)
    after = pd.read_csv(forest.folder / "w.csv")
    wrong = forest.wrong[places]
    assert (after["label_quality"][places] == ~wrong).all()  # what was checked is certain
    assert (before["label_quality"][places] != ~wrong).all()
    assert len(pd.read_csv(again)) == 32  # the earlier decisions are in the page
    assert "drawn at random" in (forest.folder / "r.html").read_text(encoding="utf-8")


def test_a_row_to_check_says_why_and_a_screen_reader_says_what_happened(forest, reviewed, chromium):
    reviewed(lambda place: "u", count=1)
    with silent_windows(chromium) as open_file:
        page = open_file(forest.folder / "r.html")
        card = page.get_by_role("group", name="The row to check")
        assert "given label" in card.inner_text()
        assert "Nearest checked rows: checked row" in card.inner_text()
        assert page.locator("#card tr.against").count() >= 1
        assert "typical of" in card.inner_text()
        page.get_by_role("button", name="Right: it is").click()
        assert "label is right. Now row" in page.locator("[aria-live=polite]").inner_text()
        page.get_by_role("button", name="Back").click()
        assert "Decided: label is right" in card.inner_text()
        page.keyboard.press("z")
        assert "Not decided yet" in card.inner_text()
        page.keyboard.press("w")
        page.reload()  # decisions are kept
        assert "Decided: wrong, correct label unknown" in card.inner_text()
        page.get_by_label("Search").press("u")  # typing is no decision
        assert "Decided: wrong, correct label unknown" in card.inner_text()
        buttons = page.locator("button:visible, select:visible, input:visible")
        names = buttons.evaluate_all("all => all.map(e => e.innerText || e.closest('label')?.innerText || '')")
        assert all(names)


def test_no_script_runs_from_hostile_text(open_page, hostile_result):
    page = open_page(hostile_result)
    assert page.evaluate("window.hacked") is None
    assert page.locator("script:not([type])").count() == 1
    assert page.locator("img").count() == 0
    assert page.locator("#rows td").filter(has_text="window.hacked = 1; alert(1)").count() >= 100


def test_the_policy_stops_foreign_scripts_and_requests(chromium, make_result, tmp_path):
    path = tmp_path / "report.html"
    html = render_report(make_result())
    intruder = "<script>window.hacked = 1</script><img src='http://127.0.0.1:9/x.png'>"
    path.write_text(html.replace("</main>", intruder + "</main>"), encoding="utf-8")
    page = chromium.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("window.hacked") is None
    assert len([text for text in said if "Content Security Policy" in text]) == 2
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_readable_in_light_and_dark(open_page, make_result, scheme):
    page = open_page(make_result(), scheme=scheme)
    style = "(element, name) => getComputedStyle(element)[name]"
    card = page.locator(".card").first.evaluate(style, "backgroundColor")
    assert (luminance(card) < 0.2) == (scheme == "dark")
    for selector in ("h1", ".note", ".warn", ".good", "figcaption", "td"):
        assert contrast(page.locator(selector).first.evaluate(style, "color"), card) > 4.5, selector
    fills = page.locator("svg text").evaluate_all("all => all.map(e => getComputedStyle(e).fill)")
    backgrounds = {fill: contrast(fill, card) for fill in set(fills)}
    # Numbers on bars have the colour of the card; every other text of a picture stands out from it.
    assert min(value for fill, value in backgrounds.items() if fill != card) > 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_on_bars_and_tiles_are_readable(open_page, make_result, scheme):
    page = open_page(make_result(), scheme=scheme)
    colours = page.evaluate(
        "() => ['--accent', '--muted', '--card'].map(name => {"
        "  const e = document.createElement('i'); e.style.color = `var(${name})`; document.body.append(e);"
        "  return getComputedStyle(e).color; })"
    )
    accent, muted, card = colours
    assert contrast(accent, card) > 4.5
    assert contrast(muted, card) > 4.5


@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_never_scrolls_sideways(open_page, hostile_result, make_result, width):
    pixels = [f"pixel{i}" for i in range(16)]
    pictures = make_result(features=pd.DataFrame(np.zeros((300, 16)), columns=pixels), pixels=(pixels, (4, 4)))
    long = make_result(command="bilevel clean " + "x" * 500, table="t" * 300, classes=("a" * 300, "b", "c"))
    for result in (hostile_result, pictures, long):
        page = open_page(result, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        outside = page.evaluate(
            "width => Array.from(document.querySelectorAll('main > *, .card, svg'))"
            ".filter(e => e.getBoundingClientRect().right > width + 1).length",
            width,
        )
        assert outside == 0


def test_a_keyboard_reaches_the_table(open_page, make_result):
    page = open_page(make_result(), width=400)
    region = page.get_by_role("region", name="All rows, the most suspicious first")
    region.focus()
    page.keyboard.press("End")
    for _ in range(50):  # (page.wait_for_function would need eval, which the page forbids)
        page.wait_for_timeout(100)
        if region.evaluate("region => region.scrollTop") > 0:
            return
    raise AssertionError("the table did not scroll")
