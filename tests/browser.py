"""Pages in Chromium: opened in silence, and colours as eyes see them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def running_chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    assert program is not None, "Chromium is needed: apt-get install chromium, or CHROMIUM=/path/to/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def silent_windows(chromium: Any) -> Iterator[Any]:
    """Opens files in windows; at the end nothing may have been said, asked of the network or popped up."""
    noise: list[str] = []
    contexts = []

    def open_(path: Path, *, width: int = 1200, scheme: str = "light") -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (noise.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None
                if request.url in (path.as_uri(),) or request.url.startswith(("data:", "blob:"))
                else noise.append(f"request: {request.url}")
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_load_state("networkidle")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert noise == []


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)" (WCAG 2.1)."""
    levels = [int(part) / 255 for part in colour[colour.index("(") + 1 : colour.index(")")].split(",")[:3]]
    linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
