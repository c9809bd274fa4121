"""`bilevel example`: tables to try the other commands on."""

from __future__ import annotations

import shlex
from pathlib import Path

from cyclopts import App


def add_to(app: App) -> None:
    """Give the program this command."""
    app.command(example)


def example(name: str | None = None, /, *, to: Path | None = None, force: bool = False) -> None:
    """Write a table with wrong labels, to try `bilevel clean` on.

    The tables are raw, with ids, dates, units and empty cells. A folder with the name of the example gets train.csv
    (some labels are wrong), checked.csv (a few rows with right labels), test.csv (right labels, to measure accuracy)
    and truth.csv (the right label of every row of train.csv). Nothing is downloaded. The licences are in LICENSES.md
    of the package `bilevel.examples`.

    Parameters
    ----------
    name
        telco (customers who leave, generated), penguins (field notes, real), digits (images, real) or tickets (texts,
        generated). Without it, the examples are listed.
    to
        Write the folder here instead of into the current folder.
    force
        Replace files that exist.
    """
    from ..examples import EXAMPLES, find, write

    if name is None:
        for known, entry in EXAMPLES.items():
            print(f"bilevel example {known:10} {entry.title}")
        return
    entry = find(name)
    folder = (to or Path()) / name
    folder.mkdir(parents=True, exist_ok=True)
    rows = write(name, folder, overwrite=force)
    train, checked, test, report = (
        shlex.quote(str(folder / file)) for file in ("train.csv", "checked.csv", "test.csv", "report.html")
    )
    print(f"{folder}, rows: {', '.join(f'{stem}.csv {count:,}' for stem, count in rows.items())}")
    print(f"{entry.wrong:.0%} of the labels of train.csv are wrong. To find them:\n")
    print(f"bilevel clean {train} --label {entry.label} --trusted {checked} \\\n    --test {test} --report {report}")
