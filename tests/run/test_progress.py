"""Progress: a bar or a few lines, and a time left that neither a slow start nor earlier work misleads."""

import sys

import pytest

from bilevel.run.progress import Progress, TimeLeft


def test_progress_without_a_terminal_is_a_few_lines(capsys):
    with Progress() as bar:
        bar.begin(0.0)
        for step in range(1, 10_001):
            bar.show(step / 10_000, f"step {step}/10000", "upper 0.25")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("step 1000/10000, ")
    assert lines[0].endswith("left: upper 0.25")
    assert lines[-1] == "step 10000/10000: upper 0.25"


def test_what_was_done_before_does_not_make_the_rest_look_short(capsys):
    with Progress() as bar:
        bar.show(0.4, "40 %", "")  # all of it stored by an earlier run, known after a moment
        bar.show(0.5, "50 %", "")
        assert "estimating" in capsys.readouterr().err.splitlines()[0]


def test_progress_without_rich(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with Progress() as bar:
        bar.show(0.5, "step 5/10", "")
    assert capsys.readouterr().err.startswith("step 5/10, ")


def test_progress_in_a_terminal_is_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with Progress() as bar:
        bar.show(1.0, "step 10/10", "upper 0.25")
    shown = capsys.readouterr().err
    assert "10/10" in shown
    assert "done" in shown
    assert "upper 0.25" in shown


def test_time_left_is_not_fooled_by_a_slow_start():
    clock = TimeLeft()
    clock.update(0.0, now=0.0)
    assert clock.seconds() != clock.seconds()  # NaN: nothing is known yet
    assert str(clock) == "estimating the time"
    clock.update(0.01, now=50.0)  # 5 s per step of a thousand while things warm up
    for done in range(20, 510, 10):
        clock.update(done / 1000, now=50.0 + 0.1 * (done - 10))
    assert clock.seconds(now=50.0 + 0.1 * 490) == pytest.approx(50.0)
