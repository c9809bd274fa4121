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
    assert page.locator("svg").count() == 5
    assert all(page.locator("svg").nth(i).bounding_box()["height"] > 80 for i in range(5))


def test_the_table_sorts(open_page, make_result):
    page = open_page(make_result())
    row, given, quality, height = 1, 2, 4, 6

    def numbers(place: int) -> list[float]:
        cells = page.locator(f"#rows tbody tr td:nth-child({place})")
        return [float(number) for number in cells.evaluate_all("all => all.map(cell => cell.dataset.number)")]

    def click(name: str) -> None:
        page.get_by_role("button", name=name, exact=True).click()

    assert numbers(quality) == sorted(numbers(quality))
    click("row")
    assert numbers(row) == sorted(numbers(row))
    assert page.locator("#rows th[aria-sort]").all_inner_texts() == ["row"]
    click("row")
    assert numbers(row) == sorted(numbers(row), reverse=True)
    assert page.locator("#rows th[aria-sort=descending]").count() == 1
    click("height")
    assert numbers(height) == sorted(numbers(height))
    assert numbers(height)[0] < 0
    click("given label")
    assert column(page, given) == sorted(column(page, given))
    assert set(column(page, given)) == {"ash", "fir", "oak"}
    page.get_by_role("button", name="quality").focus()
    page.keyboard.press("Enter")
    assert numbers(quality) == sorted(numbers(quality))


def test_no_script_runs_from_hostile_text(open_page, hostile_result):
    page = open_page(hostile_result)
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 1
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
    region = page.get_by_role("region", name="The most suspicious rows")
    region.focus()
    page.keyboard.press("End")
    for _ in range(50):  # (page.wait_for_function would need eval, which the page forbids)
        page.wait_for_timeout(100)
        if region.evaluate("region => region.scrollTop") > 0:
            return
    raise AssertionError("the table did not scroll")
