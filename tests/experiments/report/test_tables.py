"""Tables, CSV and budgets from runs whose numbers are known."""

from __future__ import annotations

import csv
import io
import math
import re

import pytest

from bilevel.errors import InvalidInputError
from bilevel.experiments.paper_values import TABLES
from bilevel.experiments.report import render_markdown
from bilevel.experiments.report.curves import band, value_after
from bilevel.experiments.report.provenance import core_hours, facts, step_searches, troubles
from bilevel.experiments.report.tables import make_cells, make_tables
from bilevel.experiments.report.writing import plain_table, runs_csv

from .conftest import cleaning_curve, record


def rows(text: str, number: int = 0) -> dict[tuple[str, str], dict[str, str]]:
    """The lines of the table with that number in a Markdown text, by dataset and method."""
    part = text.split("**\n\n")[1 + number].split("\n\n")[0]
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines()]
    return {(line[0], line[1]): dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def test_a_line_by_hand():
    """Accuracies 93, 94 and 95 %: mean 94, standard deviation 1; printed 94.24 +- 0.01, 2 s = 2 / sqrt(3)."""
    runs = [record(seed=seed, accuracy=accuracy) for seed, accuracy in enumerate((0.93, 0.94, 0.95))]
    line = rows(render_markdown(runs, "table-2"))["MNIST 6vs9", "DMLCBO"]
    assert line == {
        "dataset": "MNIST 6vs9", "method": "DMLCBO", "printed": "94.24 ± 0.01", "ours": "94.00 ± 1.00", "n": "3",
        "verdict": "within two standard errors", "F(x)": "0.5300 ± 0.0050", "accuracy, solved": "92.00 ± 1.00",
        "zero scores %, solved / own": "6.50 / 0.10", "non-zeros, solved / own": "3.0 / 700.0",
        "steps / seconds": "10000 / 50", "settings": "gamma 0.1, tau 1",
    }  # fmt: skip


def test_a_row_has_the_label_of_what_ran_and_else_the_papers_name():
    label = {"label": "DMLCBO, solved duals"}
    lines = rows(render_markdown([record(configuration=label), record(method="approx")], "table-2"))
    assert ("MNIST 6vs9", "DMLCBO, solved duals") in lines
    assert ("MNIST 6vs9", "DMLCBO") not in lines
    assert {("MNIST 6vs9", "Approx"), ("Madelon", "DMLCBO")} <= set(lines)
    ablation = record(experiment="table-4", settings={"Q": 3}, configuration=label)
    assert "| dataset | DMLCBO, solved duals with |" in render_markdown([ablation], "table-4")


def test_every_printed_cell_has_a_line_and_those_without_runs_say_so():
    for experiment, table in TABLES.items():
        lines = rows(render_markdown([], experiment))
        assert len(lines) == sum(map(len, table.cells.values()))
        assert {(line["ours"], line["verdict"]) for line in lines.values()} == {("not run", "not run")}


def test_fewer_seeds_than_asked_and_broken_runs_are_said():
    runs = [record(seed=seed) for seed in range(3)] + [
        record(seed=3, status="diverged", reason="x is not finite", accuracy=math.nan),
        record(seed=4, status="failed", curve={}),
        record(method="vpbgd", seed=0, status="diverged"),
    ]
    lines = rows(render_markdown(runs, "table-2", seeds=10))
    assert lines["MNIST 6vs9", "DMLCBO"]["n"] == "3 of 10, 1 diverged, 1 failed"
    assert lines["MNIST 6vs9", "DMLCBO"]["ours"] == "94.00 ± 0.00"  # broken runs are in no mean
    assert lines["MNIST 6vs9", "V-PBGD"]["ours"] == "no run ended"
    assert lines["MNIST 6vs9", "V-PBGD"]["n"] == "0 of 10, 1 diverged"
    assert rows(render_markdown(runs, "table-2"))["MNIST 6vs9", "DMLCBO"]["n"].startswith("3 of 5")
    assert {(trouble.runs[0].seed, trouble.what, trouble.why) for trouble in troubles(runs)} == {
        (3, "diverged", "x is not finite"),
        (4, "failed", "no reason is stored"),
        (0, "diverged", "no reason is stored"),
    }


def test_a_run_that_ended_without_a_number_is_no_result():
    runs = [record(seed=0), record(seed=1, curve={"step": [0], "training_seconds": [0.0], "accuracy": [math.nan]})]
    assert rows(render_markdown(runs, "table-2"))["MNIST 6vs9", "DMLCBO"]["n"] == "1 of 2, 1 without a number"
    assert [trouble.what for trouble in troubles(runs)] == ["ended by iterations, without a number"]


def test_a_series_that_diverged_is_told_and_its_run_counts():
    broken = {"counts": {"steps": 10_000, "series_diverged": 7}}
    runs = [record(seed=0), *(record(seed=seed, **broken) for seed in (1, 2)), record(seed=3, reason="why", **broken)]
    line = rows(render_markdown(runs, "table-2"))["MNIST 6vs9", "DMLCBO"]
    assert (line["n"], line["ours"]) == ("4, series diverged in 3", "94.00 ± 0.00")
    silent, told = troubles(runs)
    assert (silent.what, silent.seeds, told.seeds, told.why) == ("series diverged", "1, 2", "3", "why")
    assert "eta is at or beyond 2/L" in silent.why
    searched = step_searches([record(role="grid", **broken), record(role="grid", seed=1, status="failed")])
    assert searched == [("Table 2", "MNIST 6vs9", "dmlcbo", 2, 1, 1)]


def test_a_run_that_ended_worse_than_it_began_is_told_and_counts():
    curves = [cleaning_curve(0.94, 0.5) for _ in range(4)]
    for curve, rise in zip(curves, (-0.1, 2e-7, 0.02, 0.3), strict=True):
        curve["solved_upper_value"][-1] = curve["solved_upper_value"][0] + rise
    runs = [record(seed=seed, curve=curve) for seed, curve in enumerate(curves)]
    assert rows(render_markdown(runs, "table-2"))["MNIST 6vs9", "DMLCBO"]["n"] == "4, F rose in 2"
    (trouble,) = troubles(runs)
    assert (trouble.what, trouble.seeds) == ("F rose", "2, 3")
    assert "ended above its start by 0.3 at most" in trouble.why


def test_the_table_on_the_terminal_has_the_runs_of_the_report():
    runs = [record(seed=seed, accuracy=0.92 + 0.02 * seed) for seed in range(2)] + [
        record(seed=2, status="diverged", accuracy=0.1),
        record(seed=3, status="failed", curve={}),
        record(experiment="table-4", settings={"Q": 7, "tau": 0.1}, accuracy=0.9),
    ]
    title, _, one, other_title, _, other = plain_table(runs, {"table-2": 4, "table-4": 1}).splitlines()
    assert (title.split(":")[0], other_title.split(":")[0]) == ("Table 2", "Table 4")
    assert "93.00 +- 1.41" in one  # of 92 and 94
    assert "2 of 4, 1 diverged, 1 failed" in one
    assert re.search(r"MNIST 6vs9 +Q = 7 +94.35 \+- 0.01 +90.00 +1 +0.5500 +88.00 +tau 0.1", other)


def test_a_search_on_validation_classes_is_sound_without_test_accuracy():
    about = {"experiment": "table-3", "dataset": "fc100-5way", "role": "grid"}
    sound = record(**about, curve={"step": [9], "training_seconds": [1.0], "validation_accuracy": [0.4]})
    assert step_searches([sound]) == [("Table 3", "FC100, 5 way 5 shot", "dmlcbo", 1, 0, 0)]


def test_few_seeds_are_a_rough_guide():
    rough = "Where n is below 5, two standard errors are a rough guide."
    assert rough in render_markdown([record(seed=seed) for seed in range(4)], "table-2")
    assert rough not in render_markdown([record(seed=seed) for seed in range(5)], "table-2")


def test_one_seed_has_no_spread_and_no_verdict():
    line = rows(render_markdown([record()], "table-2"))["MNIST 6vs9", "DMLCBO"]
    assert (line["ours"], line["n"], line["verdict"]) == ("94.00", "1", "none from one seed")


def test_methods_and_datasets_that_the_paper_lacks_come_last():
    runs = [record(method="implicit"), record(dataset="adult")]
    lines = list(rows(render_markdown(runs, "table-2")))
    assert lines[-1] == ("adult", "DMLCBO")
    assert lines.index(("MNIST 6vs9", "implicit")) == lines.index(("MNIST 6vs9", "RMD-PCD")) + 1


def test_two_settings_are_two_lines_and_two_runs_of_a_seed_are_one():
    other = record(seed=0, settings={"gamma": 1.0, "tau": 1.0}, accuracy=0.9)
    assert len([cell for cell in make_cells([record(), other], "table-2") if cell.runs]) == 2
    short = record(identity="short", accuracy=0.5, curve={"step": [0, 50], "accuracy": [0.5, 0.6]})
    (cell,) = (cell for cell in make_cells([record(), short, record(seed=1)], "table-2") if cell.runs)
    assert [run.seed for run in cell.runs] == [0, 1]
    assert cell.left_out == (short,)
    assert cell.ours.mean == pytest.approx(94.0)


@pytest.mark.parametrize(("experiment", "setting"), [("table-4", "Q"), ("table-5", "eta")])
def test_ablations_have_a_line_per_value(experiment, setting):
    columns = TABLES[experiment].columns
    runs = [record(experiment=experiment, settings={setting: value, "tau": 0.1}, accuracy=0.9) for value in columns]
    lines = rows(render_markdown(runs, experiment))
    for value in columns:
        line = lines["MNIST 6vs9", f"{setting} = {value:g}"]
        assert (line["ours"], line["settings"]) == ("90.00", "tau 0.1")
    with pytest.raises(InvalidInputError, match=f"has no '{setting}' in its settings"):
        make_cells([record(experiment=experiment)], experiment)


def test_few_shot_has_its_own_columns():
    runs = [record(experiment="table-3", dataset="fc100-5way", seed=seed, accuracy=0.45) for seed in range(2)]
    text = render_markdown(runs, "table-3")
    line = rows(text)["FC100, 5 way 5 shot", "DMLCBO"]
    assert (line["ours"], line["verdict"], line["interval in a run"]) == ("45.00 ± 0.00", "below", "± 0.20")
    assert line["training classes"] == "46.00 ± 0.00"
    assert "F(x)" not in line


def test_the_clock():
    """An evaluation every 0.5 s: after 5 s the one of step 1000, which is 0.94 - 0.44 / e."""
    run = record()
    assert value_after(run, "accuracy", 5) == pytest.approx(0.94 - 0.44 / math.e)
    assert value_after(run, "accuracy", 5.4) == value_after(run, "accuracy", 5)
    assert value_after(run, "accuracy", 60) == 0.94  # had finished after 50 s
    stopped = record(status="time limit")
    assert math.isnan(value_after(stopped, "accuracy", 60))
    assert value_after(stopped, "accuracy", 50.2) == 0.94  # the limit itself
    assert math.isnan(value_after(record(curve={}), "accuracy", 1))
    cut = record(environment={"iterations": 20_000})  # took half of its steps, whatever its status says
    assert math.isnan(value_after(cut, "accuracy", 60))
    assert math.isnan(value_after(run, "no such column", 1))
    late = record(curve={"step": [100], "training_seconds": [3.0], "accuracy": [0.9]})
    assert math.isnan(value_after(late, "accuracy", 1))


def test_budget_columns_say_how_many_got_there():
    runs = [record(seed=0, pace=0.1, status="time limit"), record(seed=1, pace=0.5, status="time limit")]
    runs.append(record(dataset="madelon", pace=0.7, status="time limit"))
    line = rows(render_markdown(runs, "table-2"), 1)["MNIST 6vs9", "DMLCBO"]
    assert line["accuracy, 30 s"].endswith("(n = 1)")
    assert line["accuracy, 60 s"] == line["F(x), 60 s"] == "–"
    assert "±" in line["F(x), 5 s"]


def test_times_that_no_run_reached_have_no_column():
    """Evaluations of a quick look until 2 s; and a run that ended before the first time."""
    _, clock = make_tables([record(pace=0.02, status="time limit")], "table-2")
    assert clock.headings == ("method", "accuracy, 1 s", "F(x), 1 s")
    _, clock = make_tables([record(pace=0.002, status="time limit")], "table-2")
    assert clock.groups == ()
    _, clock = make_tables([record(pace=0.02)], "table-2")  # took all its steps: its last value stays
    assert clock.headings == ("method", "accuracy, 1 s", "F(x), 1 s")


def test_bands_are_mean_and_deviation_where_all_runs_are():
    line = band([record(accuracy=0.9), record(accuracy=0.94, pace=0.25)], "solved_upper_value")
    assert line is not None
    assert (line.times[0], line.times[-1]) == pytest.approx((0.5, 25.0))
    at_end = [1.0 - 0.5 * (0.9 - 0.4 * math.exp(-5)), 1.0 - 0.5 * 0.94]
    assert line.mean[-1] == pytest.approx(sum(at_end) / 2)
    assert line.std[-1] == pytest.approx(abs(at_end[0] - at_end[1]) / math.sqrt(2))
    assert band([], "accuracy") is None
    assert band([record(curve={})], "accuracy") is None


def test_text_of_strangers_stays_in_its_cell():
    run = record(method="a|b*\nc")
    lines = [line for line in render_markdown([run], "table-2").splitlines() if "a\\|b\\* c" in line]
    assert [line.count(" | ") for line in lines] == [11, 11]  # the table, and the one against the clock


def test_the_csv_has_every_run(full_sweep):
    lines = list(csv.DictReader(io.StringIO(runs_csv(full_sweep))))
    assert len(lines) == len(full_sweep)
    by_identity = {line["identity"]: line for line in lines}
    for run in full_sweep:
        line = by_identity[run.identity]
        assert (line["status"], line["reason"], int(line["seed"])) == (run.status, run.reason, run.seed)
        assert line["settings.gamma"] == str(run.settings["gamma"])
        if run.final:
            assert float(line["final.accuracy"]) == run.final["accuracy"]
    run = next(run for run in full_sweep if (run.experiment, run.dataset, run.role) == ("table-2", "mnist", "final"))
    assert float(by_identity[run.identity]["accuracy.after.1s"]) == value_after(run, "accuracy", 1)
    assert runs_csv(full_sweep[::-1]) == runs_csv(full_sweep)


def test_the_tables_can_be_made_from_the_csv(full_sweep):
    """The mean of a cell, once more, from runs.csv alone."""
    lines = csv.DictReader(io.StringIO(runs_csv(full_sweep)))
    found = [
        100 * float(line["final.accuracy"])
        for line in lines
        if (line["experiment"], line["dataset"], line["method"]) == ("table-2", "madelon", "vpbgd")
    ]
    assert rows(render_markdown(full_sweep, "table-2"))["Madelon", "V-PBGD"]["ours"].startswith(
        f"{sum(found) / len(found):.2f} ± "
    )


def test_cost_and_facts():
    runs = [record(seed=seed, processor_seconds=1800.0) for seed in range(2)]
    assert core_hours(runs) == pytest.approx(1.0)
    shared = [record(identity=name, processor_seconds=3600.0, environment={"work": "same"}) for name in "ab"]
    assert core_hours(shared) == pytest.approx(1.0)
    mixed = [
        record(dataset="mnist", environment={"torch": "2.6", "data": "m", "cores": 2, "work": "1"}),
        record(dataset="madelon", environment={"torch": "2.6", "data": "n", "cores": 4}),
        record(dataset="madelon", seed=1, environment={"torch": "2.6", "data": "n", "cores": 2}),
    ]
    assert facts(mixed) == {"cores": "2, 4", "data": "madelon: n, mnist: m", "torch": "2.6"}


def test_tables_are_two_per_experiment(full_sweep):
    for experiment in TABLES:
        results, clock = make_tables(full_sweep, experiment)
        for table in (results, clock):
            assert {len(line) for _, lines in table.groups for line in lines} == {len(table.headings)}
