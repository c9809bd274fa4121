"""A run's numbers are those of independent computations; its bits repeat."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bilevel
from bilevel.errors import InvalidInputError
from bilevel.experiments import load_configuration
from bilevel.experiments import run as cleaning
from bilevel.experiments.data import cleaning_problem, cleaning_task, data_hash
from bilevel.experiments.plan import planned_runs
from bilevel.experiments.run import CleaningCurve, final_status, run
from bilevel.run.solution import Status

from .conftest import FEW_SHOT

HASHES: dict[str, str] = {}


@pytest.fixture(autouse=True)
def hashes(data):
    HASHES["madelon"] = data_hash("madelon", data)


def specs(tiny, method, **changes):
    found = [spec for spec in planned_runs(tiny, HASHES, {}) if spec.method == method]
    return [replace(found[0], role="final", **changes)]


@pytest.fixture
def setting(tiny, data):
    part = tiny.datasets["madelon"]
    task = cleaning_task(part, "madelon", data, 1000)
    return part, task, cleaning_problem(part, task)


def test_rows_are_disjoint_labels_are_flipped_and_columns_standardised(setting):
    _, task, _ = setting
    assert task.X.shape == (60, 500)
    assert task.wrong.sum() == 18
    used = np.vstack([task.X, task.trusted_X])
    assert len(np.unique(used, axis=0)) == 110
    np.testing.assert_allclose(used.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(used.std(0), 1, atol=1e-12)


@pytest.mark.parametrize("method", ["dmlcbo", "approx"])
def test_the_last_row_is_what_the_final_state_gives(tiny, data, method):
    (outcome,) = run(specs(tiny, method), data)
    record, part = outcome.record, tiny.datasets["madelon"]
    task = cleaning_task(part, "madelon", data, record.seed)
    problem = cleaning_problem(part, task)
    x, y = torch.tensor(outcome.state["x"]), {"weight": torch.tensor(outcome.state["y"])}
    assert record.status == "iterations"
    assert record.curve["step"] == [0, 10, 20]
    assert record.final["upper_value"] == float(problem.linearize(x, y).upper_value)
    assert record.final["solved_upper_value"] == pytest.approx(float(bilevel.upper_value(problem, x)), abs=1e-6)
    scores = task.test_X @ outcome.state["y"][0]
    half = np.where(scores == 0, 0.5, np.sign(scores) == 2 * task.test_y - 1)
    assert record.final["accuracy"] == pytest.approx(half.mean(), abs=1e-12)
    assert record.final["own_zero_share"] == (scores == 0).mean()
    assert record.final["own_nonzeros"] == np.count_nonzero(outcome.state["y"])
    assert record.curve["accuracy"][0] == 0.5  # y = 0: every score is zero, and zero counts half
    assert record.curve["own_zero_share"][0] == 1.0
    assert record.counts["steps"] == 20


def test_a_run_has_the_same_bits_again_and_an_evaluation_changes_none(tiny, data):
    (one,), (again,) = (run(specs(tiny, "dmlcbo"), data) for _ in range(2))
    (rarely,) = run(specs(tiny, "dmlcbo", evaluate_every=20), data)
    for other in (again, rarely):
        assert other.state["x"].tobytes() == one.state["x"].tobytes()
        for name, value in one.record.final.items():
            if name == "data_passes":  # each evaluation adds less than a tenth of a pass
                assert other.record.final[name] == pytest.approx(value, abs=0.2)
            elif name not in ("training_seconds", "solved_residual"):
                assert other.record.final[name] == pytest.approx(value, abs=1e-7 if name.startswith("solved") else 0)


def test_time_limit_divergence_and_settings_that_do_not_fit_are_recorded(tiny, data):
    (limited,) = run(specs(tiny, "dmlcbo", limit_seconds=1e-9), data)
    assert (limited.record.status, limited.record.final["step"]) == ("time limit", 1)
    (wild,) = run(specs(tiny, "dmlcbo", settings={"upper_step": 1e308, "lower_step": 1.0}), data)
    assert wild.record.status == "diverged"
    assert "lower upper_step" in wild.record.reason
    (wrong,) = run(specs(tiny, "dmlcbo", settings={"upper_step": 1.0, "lower_stp": 1.0}), data)
    assert wrong.record.status == "failed"
    assert "lower_stp" in wrong.record.reason


def test_a_run_ends_when_f_has_hardly_changed_in_500_steps(setting):
    _, task, problem = setting
    curve = CleaningCurve(task, problem, every=True, converged=1e-6)
    x, y = problem.start(), problem.y0
    points = [(0, x), (250, x + 1), (500, x + 2), (750, x + 2), (1000, x + 2)]
    answers = [curve(SimpleNamespace(step=k, seconds=k, costs={}), SimpleNamespace(x=x, y=y)) for k, x in points]
    assert answers == [False, False, False, False, True]
    limited = CleaningCurve(task, problem, every=True)
    assert not any(limited(SimpleNamespace(step=k, seconds=k, costs={}), SimpleNamespace(x=x, y=y)) for k in (0, 500))
    assert final_status(Status.STOPPED, "", 1000, 2000) == ("converged", "")


def test_a_worker_with_other_code_or_other_data_refuses(tiny, data, tmp_path):
    (spec,) = specs(tiny, "dmlcbo")
    with pytest.raises(
        InvalidInputError, match="has version .*/[0-9a-f]{12} of the code, .* planned by 9.9/9: install"
    ):
        run([replace(spec, code="9.9/9")], data)
    other = tmp_path / "other"
    shutil.copytree(data, other)
    run([replace(spec, iterations=1)], other)
    labels = other / "madelon" / "madelon_valid.labels"
    lines = labels.read_text().splitlines()
    labels.write_text("\n".join([str(-int(lines[0])), *lines[1:], ""]))
    with pytest.raises(InvalidInputError, match=f"has other files of madelon in {other} .*: copy them there"):
        run([spec], other)
    shutil.copy2(data / "madelon" / labels.name, labels)
    run([replace(spec, iterations=1)], other)


def test_memory_that_runs_out_is_not_a_result(tiny, data, monkeypatch):
    monkeypatch.setattr(cleaning.CleaningCurve, "add_end", lambda *_: torch.empty(1 << 50))
    with pytest.raises(MemoryError, match="allocate memory"):
        run(specs(tiny, "dmlcbo"), data)


def test_more_rows_than_there_are_is_an_error(tiny, data):
    (spec,) = specs(tiny, "dmlcbo")
    with pytest.raises(InvalidInputError, match="madelon has 2000 rows .* fewer than rows .* trusted = 1990 . 50"):
        run([replace(spec, data={**spec.data, "rows": 1990})], data)


def test_a_series_that_diverges_is_the_reason_of_a_run_that_came_to_its_end(tiny, data):
    """In a ball that holds the minimiser eta = 1000 is far beyond 2/L."""
    (one,) = specs(tiny, "dmlcbo")
    beyond = replace(one, fixed=one.fixed | {"eta": 1000.0, "truncation": "full"}, data=one.data | {"radius": 100.0})
    (outcome,) = run([beyond], data)
    assert outcome.record.status == "iterations"
    assert outcome.record.counts["series_diverged"] > 0
    assert "eta is at or beyond 2/L" in outcome.record.reason
    for steps, status in ((20, "iterations"), (19, "time limit")):
        assert final_status(Status.SERIES_DIVERGES, "", steps, 20) == (status, str(Status.SERIES_DIVERGES))


def test_the_published_algorithm_is_a_method(tiny, data):
    """Two-point estimates along all coordinates: projections by the number of columns and terms."""
    (one,) = specs(tiny, "dmlcbo", iterations=3, evaluate_every=3)
    published = replace(one, solver="dmlcbo-as-published", fixed={"Q": 1, "eta": 0.1})
    (outcome,) = run([published], data)
    assert outcome.record.status == "iterations"
    assert outcome.record.counts["projections"] > 500


def test_a_few_shot_run_counts_its_steps_and_what_they_asked_for(tmp_path):
    path = tmp_path / "few-shot.toml"
    path.write_text(FEW_SHOT)
    (spec,) = planned_runs(load_configuration(path), {"generated": ""}, {})
    (outcome,) = run([spec], tmp_path)
    counts = outcome.record.counts
    assert counts["steps"] == 4
    # A hypergradient of DMLCBO takes one gradient of f and one product with G_xy; there is one more at the start.
    assert counts["upper_gradients"] == counts["cross_products"] == 5
