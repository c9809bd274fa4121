"""The page in Chromium: it opens in silence without a network, and suits eyes and small screens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import contrast, luminance, running_chromium, silent_windows

from bilevel.experiments.report import write_report

from .conftest import record

pytestmark = pytest.mark.browser

STYLE = "(element, name) => getComputedStyle(element)[name]"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def open_file(chromium) -> Iterator[Any]:
    with silent_windows(chromium) as open_:
        yield open_


@pytest.fixture(scope="module")
def report(full_sweep, tmp_path_factory) -> Path:
    """Verdicts of all kinds, a long command and a hostile reason."""
    folder = tmp_path_factory.mktemp("report")
    far = [record(dataset="madelon", method="approx", seed=seed, accuracy=0.9) for seed in range(2)]
    near = [
        record(dataset="madelon", method="implicit", seed=0, status="failed", reason="<script>alert(1)</script>" * 20)
    ]
    low = [record(experiment="table-3", dataset="fc100-5way", seed=s, method="other", accuracy=0.3) for s in range(2)]
    write_report(
        [*full_sweep, *far, *near, *low], folder, command="bilevel reproduce all " + "x" * 300, notes=["A quick look."]
    )
    return folder


def test_it_opens_in_silence_with_all_its_pictures(open_file, report):
    page = open_file(report / "index.html")
    assert page.title() == "The paper's tables and figures, repeated"
    heights = page.locator("svg").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
    assert len(heights) == 12
    assert min(heights) > 150
    open_file(report / "table-2.html")


def test_every_picture_and_table_has_a_name(open_file, report):
    page = open_file(report / "index.html")
    names = page.get_by_role("img").evaluate_all("all => all.map(e => e.getAttribute('aria-label'))")
    assert len(names) == 12
    assert all(name and "ends at" in name for name in names)
    regions = page.locator("[role=region]").evaluate_all(
        "all => all.map(e => document.getElementById(e.getAttribute('aria-labelledby')).textContent.trim())"
    )
    assert len(regions) == 10  # two tables for each experiment, troubles, and the search of steps
    assert len(set(regions)) == 10
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_contents_lead_to_their_places(open_file, report):
    page = open_file(report / "index.html", width=400)
    for link in page.locator("nav a").all():
        target = link.get_attribute("href")
        link.click()
        page.wait_for_function(
            "id => { const top = document.querySelector(id).getBoundingClientRect().top;"
            " return top < innerHeight && top > -5; }",
            arg=target,
        )
        page.evaluate("window.scrollTo(0, 0)")


@pytest.mark.parametrize("name", ["index.html", "table-2.html"])
@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_never_scrolls_sideways(open_file, report, width, name):
    page = open_file(report / name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        "width => Array.from(document.querySelectorAll('main > *, .card, svg, p, h2, h3, dd, pre'))"
        ".filter(e => e.getBoundingClientRect().right > width + 1).length",
        width,
    )
    assert outside == 0


def test_texts_of_pictures_are_large_enough_on_a_telephone(open_file, report):
    page = open_file(report / "index.html", width=400)
    sizes = page.locator("svg text").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
    assert min(size for size in sizes if size) >= 9


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_lines_stand_out(open_file, report, scheme):
    page = open_file(report / "index.html", scheme=scheme)
    card = page.locator(".card").first.evaluate(STYLE, "backgroundColor")
    assert (luminance(card) < 0.2) == (scheme == "dark")
    for selector in (
        "h1",
        "h3",
        ".note",
        "td.good",
        "td.warn",
        "td.note",
        "figcaption",
        "td",
        "th[scope=row]",
        "a",
        "dt",
    ):
        assert contrast(page.locator(selector).first.evaluate(STYLE, "color"), card) > 4.5, selector
    fills = page.locator("svg text").evaluate_all("all => all.map(e => getComputedStyle(e).fill)")
    assert min(contrast(fill, card) for fill in set(fills)) > 4.5
    colours = page.evaluate(
        "() => [1, 2, 3, 4, 5, 6, 7, 8].map(place => { const e = document.createElement('i');"
        " e.style.color = `var(--series-${place})`; document.body.append(e); return getComputedStyle(e).color; })"
    )
    assert min(contrast(colour, card) for colour in colours) > 3.0  # WCAG 2.1, 1.4.11: graphics
    assert len(set(colours)) == 8


def test_a_keyboard_reaches_the_far_columns(open_file, report):
    page = open_file(report / "index.html", width=400)
    region = page.locator("[role=region]").first
    region.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('[role=region]').scrollLeft > 0")
    # The name of the method stays in sight.
    assert page.locator("th[scope=row]").first.bounding_box()["x"] >= 0


def test_reasons_of_runs_are_text(open_file, report):
    page = open_file(report / "index.html")
    assert page.locator("script").count() == 1
    assert page.get_by_text("<script>alert(1)</script>").count() == 1
