"""The page "How to choose a solver" names every solver, and every test it leans on exists."""

import re
from pathlib import Path

from bilevel import solvers

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "choosing-a-solver.md"

TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("| `")]


def test_every_solver_has_a_full_row():
    classes = {name for name in solvers.__all__ if name != "Solver" and hasattr(getattr(solvers, name), "init")}
    assert {row[0].strip().strip("`") for row in ROWS} == classes
    assert all(len(row) == 9 and all(cell.strip() for cell in row) for row in ROWS)


def test_every_mark_is_explained():
    """A mark such as [R1] or [T1] has a line "- [R1] ..."."""
    marks = set(re.findall(r"\[([RTC]\d+)\]", TEXT))
    explained = set(re.findall(r"^- \[([RTC]\d+)\]", TEXT, flags=re.MULTILINE))
    assert marks == explained


def test_every_test_it_names_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)
    assert len(named) > 40
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name}"
