"""The page docs/trust.md: its blocks run, print what it shows, and its table names every cause."""

import re
from pathlib import Path

from tests.wrong_setups import WRONG_SETUPS

from bilevel.diagnostics import Cause

PAGE = (Path(__file__).parents[2] / "docs" / "trust.md").read_text(encoding="utf-8")


def test_the_blocks_print_what_the_page_shows(capsys):
    names: dict[str, object] = {}
    codes = re.findall(r"```\{computed\}\n:silent:\n(.*?)```", PAGE, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(codes) == len(shown) == 3
    for code, text in zip(codes, shown, strict=True):
        exec(code, names)
        assert capsys.readouterr().out == text


def test_every_cause_is_in_the_table():
    assert set(re.findall(r"`([A-Z_]+)`", PAGE)) >= {cause.name for cause in Cause} - {"CORRECT"}
    assert all(cause.text and cause.remedy for cause in Cause)


def test_every_cause_but_the_unexplained_has_a_wrong_setup():
    assert {wrong.cause for wrong in WRONG_SETUPS} == set(Cause) - {Cause.CORRECT, Cause.UNEXPLAINED}
