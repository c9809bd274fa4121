"""Ctrl-C in this process (--workers 0) ends the sweep; the run that it cut short is made anew, and never stored."""

import os
import signal

import pytest

from bilevel.cli import main
from bilevel.experiments import command
from bilevel.experiments.few_shot_run import FewShotCurve
from bilevel.experiments.run import CleaningCurve
from bilevel.experiments.store import ResultsStore

from .conftest import FEW_SHOT, TINY


def pressed_once(patch, owner, name):
    """Ctrl-C at the first call of a method, as the terminal sends it."""
    whole, calls = getattr(owner, name), []

    def call(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(*arguments, **named)

    patch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("text", "curve"), [(TINY, CleaningCurve), (FEW_SHOT, FewShotCurve)], ids=["cleaning", "few-shot"]
)
def test_a_run_that_was_cut_short_is_no_result(data, table, tmp_path, monkeypatch, capsys, text, curve):
    table.write_text(text)
    monkeypatch.setattr(command, "report_runs", lambda *_: None)
    options = ["--configuration", str(table), "--data", str(data), "--results", str(tmp_path / "results")]
    with monkeypatch.context() as patch:
        pressed_once(patch, curve, "__call__")
        assert main(["reproduce", "all", "--workers", "0", "--methods", "dmlcbo", *options]) == 130
    assert "0 runs are in" in capsys.readouterr().err
    store = ResultsStore(tmp_path / "results")
    assert store.records() == []
    assert main(["reproduce", "all", "--workers", "0", "--methods", "dmlcbo", *options]) == 0
    store = ResultsStore(tmp_path / "results")
    assert {record.status for record in store.records()} == {"iterations"}
