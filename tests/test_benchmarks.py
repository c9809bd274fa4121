"""The benchmarks measure what they say: one problem for all, F at the solved lower level; a failure loses nothing."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import pin_hashes
from benchmarks.contestants import HERE, cleaning, contestants
from benchmarks.few_shot_step import Stopwatch
from benchmarks.harness import Row, collected, markdown, reason_of
from benchmarks.paper_data import Task
from benchmarks.paper_effort import arrival, distances_of_f
from benchmarks.paper_effort import markdown as effort
from benchmarks.true_value import Value, lower_bound
from benchmarks.zoo import TrueValue, flat, unflat
from benchmarks.zoo_problems import CASES
from benchmarks.zoo_variants import make

import bilevel
from bilevel.experiments import RunRecord


@pytest.fixture
def task() -> Task:
    rng = np.random.default_rng(0)
    X, trusted = rng.normal(size=(60, 12)) ** 2, rng.normal(size=(50, 12)) ** 2
    y, trusted_y = (rows @ np.linspace(-1, 1, 12) > 0 for rows in (X, trusted))
    wrong = rng.random(60) < 0.3
    return Task(X, (y ^ wrong).astype(int), wrong, trusted, trusted_y.astype(int), trusted, trusted_y.astype(int))


def test_the_value_on_few_columns_is_that_of_the_whole_lower_level(task: Task) -> None:
    value, problem = Value(task), cleaning(task)
    for seed in range(3):
        x = torch.randn(60, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        whole = float(bilevel.upper_value(problem, x))
        assert value(x) == pytest.approx(whole, abs=1e-7)
        assert lower_bound(task) <= whole
    assert value(torch.full((60,), math.nan)) == math.inf


def test_the_peers_have_the_same_problem(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (2.0 * labels - 1 for labels in (task.given, task.trusted_y))
    np.savez(tmp_path / "data.npz", A=task.X, a=a, B=task.trusted_X, b=b, x0=np.zeros(60))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "data.npz"), "", "1", "1", "1", "adam", "10"])
    monkeypatch.syspath_prepend(str(HERE))
    for name in ("recorder", "torch_parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    parts = importlib.import_module("torch_parts")
    x, y = (torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (60, 12))
    problem, z = cleaning(task), y
    y = bilevel.sets.L1Ball(1.0).project(z)
    torch.testing.assert_close(parts.project(z), y, rtol=0, atol=1e-12)
    assert torch.equal(parts.project(0.9 * y), 0.9 * y)
    lin = problem.linearize(x, {"weight": y[None]})
    torch.testing.assert_close(parts.lower(y, x), lin.lower_value)
    torch.testing.assert_close(parts.upper(y), lin.upper_value)
    torch.testing.assert_close(parts.lower_grad(y, x), lin.lower_grad_y["weight"][0])
    for name in ("recorder", "torch_parts"):
        del sys.modules[name]


def test_our_runs_are_on_the_clock_and_go_from_zero_to_the_last_step(task: Task) -> None:
    path = next(iter(contestants(task)["DMLCBO on few products"].values()))(1.0, math.inf, 20)
    assert path.steps[-1] == 20
    assert path.seconds == sorted(path.seconds)
    assert path.seconds[0] > 0
    assert Value(task)(path.xs[-1]) < Value(task)(torch.zeros(60))


def test_a_failure_keeps_the_rows_before_it_and_says_why() -> None:
    def rows() -> Iterator[Row]:
        yield Row("first", 2.0, "<= 3")
        raise ValueError("no peer\nthere is no network")

    first, failed = collected("peer", rows())
    assert first.met
    assert failed.met is None
    assert failed.note == "there is no network"
    assert markdown([first, failed]).splitlines()[2:] == [
        "| first | 2 | <= 3 | yes |",
        "| peer: does not run | - |  |  |",
    ]
    assert reason_of(subprocess.CalledProcessError(1, ["pip"], stderr="ERROR: a\nERROR: b\n")) == "ERROR: b"


def test_a_part_is_not_charged_for_what_another_part_does() -> None:
    watch = Stopwatch()

    def busy(turns: int) -> int:
        return sum(k * k for k in range(turns))

    inner = watch.timed(lambda: busy(400_000), "inner")
    watch.timed(lambda: (inner(), busy(1_000)), "outer")()
    assert 0 <= watch.seconds["outer"] < 0.3 * watch.seconds["inner"]


@pytest.mark.parametrize("variant", ["f1e-4", "g1e3", "x1e2", "y1e-2"])
@pytest.mark.parametrize("name", ["l1radius", "pricing", "nnls"])
def test_a_case_in_other_units_is_the_same_case(name: str, variant: str) -> None:
    case, to_base = make(f"{name}~{variant}", 0)
    base, _ = make(name, 0)
    scale = float(variant[1:]) if variant.startswith("f") else 1.0
    assert np.allclose(flat(to_base(case.x0)), flat(base.x0))
    there, here = (float(bilevel.upper_value(c.problem, c.x0, c.y0, tol=1e-7, max_steps=50_000)) for c in (case, base))
    assert there == pytest.approx(scale * here, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in CASES if name != "mlp"])
def test_the_lower_levels_of_the_zoo_are_solved_without_the_library(name: str) -> None:
    case, _ = make(name, 1)
    value, y = TrueValue(name, 1), case.y0
    assert value(case.x0) == pytest.approx(float(bilevel.upper_value(case.problem, case.x0, y)), rel=1e-5)
    assert np.array_equal(flat(unflat(flat(case.x0), case.x0)), flat(case.x0))


def test_every_pin_but_torch_has_a_hash(monkeypatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    lines = [line.split(" --hash=sha256:") for line in Path("requirements.txt").read_text().splitlines()[2:]]
    assert [pin for pin, _ in lines] == pin_hashes.pins()
    assert all(len(digest) == 64 for _, digest in lines)
    assert not [pin for pin, _ in lines if pin.startswith("torch==")]


def test_effort_is_counted_until_f_is_near_the_lowest_of_all_methods_on_the_same_seed() -> None:
    def run(method: str, seed: int, *values: float) -> RunRecord:
        counts = [float(k) for k in range(len(values))]
        curve = {"step": counts, "training_seconds": [0.5 * k for k in counts], "gradients": [4 * k for k in counts]}
        curve |= {"data_passes": [2 * k for k in counts], "solved_upper_value": list(values)}
        about = {"experiment": "table-2", "role": "final", "dataset": "mnist", "status": "converged"}
        about["settings"] = {"upper_step": 1.0, "lower_step": 0.1}
        return RunRecord(**about, identity=f"{method}{seed}", method=method, seed=seed, curve=curve)  # type: ignore[arg-type]

    runs = [run("dmlcbo", 0, 0.6, 0.50005, 0.5), run("approx", 0, 0.6, 0.55, 0.5008), run("dmlcbo", 1, 0.9, 0.8)]
    distances = distances_of_f(runs)
    assert distances["approx0"] == pytest.approx([0.1, 0.05, 0.0008])
    assert distances["dmlcbo1"] == pytest.approx([0.1, 0.0])  # another seed has other rows
    near = {"step": 1.0, "training_seconds": 0.5, "gradients": 4.0, "data_passes": 2.0}
    assert arrival(runs[0], distances["dmlcbo0"], 1e-4) == near
    assert arrival(runs[1], distances["approx0"], 1e-4) is None
    first, second = effort(runs, distances).splitlines()[2:]
    assert "| dmlcbo | 1, 0.1 | 2 |" in first
    assert "| 0.50 | 0.50 | 0.75 | 4 | 2 |" in first
    assert "| 1.00 | – | – | – | – |" in second
