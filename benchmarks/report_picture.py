"""The pictures of the report in README and manual, light and dark: `make pictures`.

Runs `bilevel example telco` and the command that it prints, and photographs the most suspicious row of the report in
Chromium: its labels, and the columns that speak against the given one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STATIC = Path(__file__).parents[1] / "docs" / "_static"
SIZE = {"width": 1100, "height": 1400}
COLUMNS = 4
"""How many columns of the row are shown; the first ones speak most against its label."""


def report(folder: str) -> Path:
    """The report of the example."""
    bilevel = [sys.executable, "-m", "bilevel"]
    shown = subprocess.run(
        [*bilevel, "example", "telco"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    command = shlex.split(shown[shown.index("bilevel clean") :].replace("\\\n", " "))
    subprocess.run([*bilevel, *command[1:]], cwd=folder, check=True)
    return Path(folder, "telco", "report.html")


def main() -> None:
    """Write docs/_static/report-light.png and report-dark.png."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = report(folder)
        program = shutil.which(os.environ.get("CHROMIUM", "chromium"))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme, device_scale_factor=1.5)  # type: ignore[arg-type]
            page.goto(page_file.as_uri())
            path = STATIC / f"report-{scheme}.png"
            row, last = page.locator("#card"), page.locator("#card tbody tr").nth(COLUMNS - 1)
            box, end = row.bounding_box(), last.bounding_box()
            page.screenshot(path=path, clip={**box, "height": end["y"] + end["height"] - box["y"]})
            Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
            print(path.name, path.stat().st_size // 1000, "kB")
        browser.close()


if __name__ == "__main__":
    main()
