"""The built manual in Chromium: silent, without the network, complete links, search, small screens, light and dark."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from tests.browser import running_chromium

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
COLOURS = """() => {
    const paragraph = document.querySelector("article p, article li, article h1, main p") || document.body;
    let ground = paragraph, colour;
    do { colour = getComputedStyle(ground).backgroundColor; ground = ground.parentElement; }
    while (ground && /rgba\\(.*, 0\\)|transparent/.test(colour));
    return [getComputedStyle(paragraph).color, colour].map((text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number));
}"""


@pytest.fixture(scope="module")
def site() -> Path:
    """The manual as `make docs` builds it; what is built already and has not changed is not built again."""
    built = ROOT / "docs" / "_build" / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(built)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return built


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with running_chromium() as browser:
        yield browser


def pages_of(site: Path) -> list[str]:
    parts = [path.relative_to(site) for path in sorted(site.rglob("*.html"))]
    return [str(path) for path in parts if not path.parts[0].startswith(("_static", "_modules", "_sources"))]


class Links(HTMLParser):
    """What a page refers to, the names in it, and the pictures without a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.silent_pictures: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.targets.append(str(found["href"]))
        if tag == "img":
            self.targets.append(str(found.get("src")))
            if not (found.get("alt") or "").strip():
                self.silent_pictures.append(str(found.get("src")))


@pytest.fixture(scope="module")
def read(site) -> dict[str, Links]:
    return {name: Links((site / name).read_text(encoding="utf-8")) for name in pages_of(site)}


def test_links_inside_the_manual_resolve(site, read):
    broken = []
    for name, links in read.items():
        for target in links.targets:
            if urlsplit(target).scheme:
                continue
            path, anchor = urldefrag(unquote(target))
            goal = os.path.normpath(os.path.join(os.path.dirname(name), path.split("?")[0])) if path else name
            if not (site / goal).exists():
                broken.append(f"{name}: {target}")
            elif anchor and goal in read and anchor not in read[goal].anchors:
                broken.append(f"{name}: {target} (no such place)")
    assert broken == []


def test_pictures_have_alternative_text(read):
    assert {name: links.silent_pictures for name, links in read.items() if links.silent_pictures} == {}
    assert sum(".png" in target for links in read.values() for target in links.targets) >= 12


def visit(chromium: Any, address: str, names: list[str], look: Any, **window: Any) -> list[str]:
    """Open every page; what is heard, what fails to load, requests to elsewhere, and what `look` complains about."""
    complaints: list[str] = []
    context = chromium.new_context(**window)
    page = context.new_page()
    page.on(
        "console",
        lambda message: (
            complaints.append(f"{page.url}: {message.text}") if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    page.on(
        "response", lambda answer: complaints.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
    )
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((address, "data:")) else complaints.append(f"request: {request.url}")
        ),
    )
    for name in names:
        page.goto(f"{address}/{name}", wait_until="load")
        complaints += [f"{name}: {text}" for text in look(page)]
    context.close()
    return complaints


def contrast(page: Any) -> float:
    """(lighter + 0.05) / (darker + 0.05) of text and ground (WCAG 2.1)."""

    def luminance(colour: list[float]) -> float:
        parts = [v / 255 for v in colour]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    one, two = sorted(map(luminance, page.evaluate(COLOURS)), reverse=True)
    return (one + 0.05) / (two + 0.05)


def prose(names: list[str]) -> list[str]:
    return [name for name in names if name not in ("genindex.html", "search.html", "py-modindex.html")]


def test_every_page_opens_in_silence_in_light(chromium, address, site):
    def look(page: Any) -> list[str]:
        return [] if contrast(page) >= 4.5 else ["too little contrast"]

    names = prose(pages_of(site))
    assert visit(chromium, address, names, look, viewport={"width": 1200, "height": 900}, color_scheme="light") == []


def test_every_page_is_readable_at_400_pixels_in_dark(chromium, address, site):
    def look(page: Any) -> list[str]:
        wide = page.evaluate(OVERFLOW)
        dark = sum(page.evaluate(COLOURS)[1]) < 3 * 80
        return [
            *([f"{wide} pixels too wide"] if wide > 1 else []),
            *([] if dark else ["not dark"]),
            *([] if contrast(page) >= 4.5 else ["too little contrast"]),
        ]

    names = prose(pages_of(site))
    assert visit(chromium, address, names, look, viewport={"width": 400, "height": 800}, color_scheme="dark") == []


def test_search_finds_the_l1_ball(chromium, address):
    def look(page: Any) -> list[str]:
        page.wait_for_selector("#search-results ul.search li a", timeout=20_000)
        found = page.locator("#search-results ul.search li a").all_inner_texts()
        return [] if any("L1Ball" in text for text in found) else [f"found {found}"]

    assert visit(chromium, address, ["search.html?q=l1+ball"], look) == []


def test_formulas_are_shown_without_a_script(chromium, address):
    def look(page: Any) -> list[str]:
        formulas = page.locator("math")
        boxes = [formulas.nth(k).bounding_box() for k in range(min(formulas.count(), 20))]
        return [] if len(boxes) > 5 and all(box and box["width"] > 0 for box in boxes) else ["formulas are missing"]

    assert visit(chromium, address, ["mathematics.html"], look) == []
