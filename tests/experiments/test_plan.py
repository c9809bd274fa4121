"""The plan: a run is known by all that its numbers depend on, and what comes next depends on validation alone."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import bilevel
from bilevel.experiments import code_version
from bilevel.experiments.configuration import load_configuration
from bilevel.experiments.plan import RunSpec, count_runs, planned_runs
from bilevel.experiments.run import copy_record, describe
from bilevel.experiments.run_folder import RunRecord

HASHES = {"madelon": "0", "mnist": "1", "fashion-mnist": "2", "cod-rna": "3"}


def record(spec, value, accuracy=0.5, status="iterations"):
    return RunRecord(**describe(spec), status=status, curve={"solved_upper_value": [value], "accuracy": [accuracy]})


def done(specs, values, **more):
    return {spec.identity: record(spec, value, **more) for spec, value in zip(specs, values, strict=True)}


def test_the_identity_changes_with_everything_that_matters(tiny):
    spec = next(planned_runs(tiny, HASHES, {}))
    others = [
        replace(spec, seed=7), replace(spec, settings={**spec.settings, "upper_step": 0.2}),
        replace(spec, data_hash="x"),
        replace(spec, limit_seconds=3.0), replace(spec, iterations=21), replace(spec, code="other"),
        replace(spec, fixed={}), replace(spec, data={**spec.data, "c": 0.1}), replace(spec, experiment="table-9"),
    ]  # fmt: skip
    assert len({spec.identity, *(other.identity for other in others)}) == 10
    assert replace(spec).identity == spec.identity
    assert len(spec.identity) == 16


def test_the_pair_with_the_smallest_f_goes_on_and_not_the_most_accurate(tiny):
    table = tiny.select(methods=["dmlcbo"])
    search = list(planned_runs(table, HASHES, {}))
    assert [(spec.role, spec.seed) for spec in search] == [("grid", 1000)] * 2
    half = done(search[:1], [0.6])
    assert list(planned_runs(table, HASHES, half)) == search
    finished = {search[0].identity: record(search[0], 0.6, accuracy=0.99), **done(search[1:], [0.5], accuracy=0.1)}
    final = list(planned_runs(table, HASHES, finished))[2:]
    assert [(spec.role, spec.seed, spec.settings) for spec in final] == [
        ("final", i, search[1].settings) for i in (0, 1)
    ]


def test_diverged_runs_and_values_that_are_not_finite_are_not_chosen(tiny):
    table = tiny.select(methods=["dmlcbo"])
    search = list(planned_runs(table, HASHES, {}))
    for bad in (record(search[0], 0.1, status="diverged"), record(search[0], float("nan"))):
        finished = {search[0].identity: bad, **done(search[1:], [0.9])}
        assert list(planned_runs(table, HASHES, finished))[2].settings == search[1].settings


@pytest.mark.parametrize(("scores", "best"), [((0.5 - 4e-7, 0.5), 0.1), ((0.5 - 4e-6, 0.5), 1.0)])
def test_of_equal_scores_the_smallest_upper_step_is_taken(tiny, scores, best):
    """Equal: to the accuracy of a solved lower level."""
    table = tiny.select(methods=["dmlcbo"])
    search = list(planned_runs(table, HASHES, {}))
    assert [spec.settings["upper_step"] for spec in search] == [1.0, 0.1]
    assert list(planned_runs(table, HASHES, done(search, scores)))[2].settings["upper_step"] == best


def test_an_ablation_takes_the_steps_of_its_table_and_shares_the_runs_they_have_in_common():
    base, table = (
        load_configuration(name).select(datasets=["madelon"], methods=["dmlcbo"]) for name in ("table-2", "table-4")
    )
    plan, finished = [], {}
    for _ in range(3):  # looks, search, final
        plan = list(planned_runs(base, HASHES, finished))
        finished |= done(plan, [0.5 + 0.001 * i for i in range(len(plan))])
    final = [spec for spec in plan if spec.role == "final"]
    varied = [spec for spec in planned_runs(table, HASHES, finished) if spec.role == "final"]
    assert {spec.settings["Q"] for spec in varied} == {1, 3, 5, 7}
    assert all(spec.experiment == "table-2" for spec in planned_runs(table, HASHES, finished) if spec.role == "grid")
    same = [spec for spec in varied if spec.settings["Q"] == 3]
    assert [spec.work for spec in same] == [spec.work for spec in final]
    twin = copy_record(record(final[0], 0.5), same[0])
    assert (twin.identity, RunSpec(**twin.configuration)) == (same[0].identity, same[0])
    assert {spec.work for spec in varied if spec.settings["Q"] != 3}.isdisjoint(spec.work for spec in final)


@pytest.mark.parametrize("name", ["table-2", "table-3", "table-4"])
def test_the_count_is_that_of_the_plan(name):
    table, finished, plan = load_configuration(name).quick_look(), {}, []
    hashes = HASHES | {"omniglot": "4", "cifar-100": "5"}
    for _ in range(2):
        plan = list(planned_runs(table, hashes, finished))
        finished |= {spec.identity: record(spec, 0.5) for spec in plan}
    assert count_runs([table])[0] == len(list(planned_runs(table, hashes, finished)))


def test_another_label_makes_the_same_run(tiny):
    (one, *_) = planned_runs(tiny, HASHES, {})
    other = replace(one, label="what ran")
    assert (other.identity, other.work) == (one.identity, one.work)
    assert RunSpec(**other.document).label == "what ran"


def test_another_code_makes_other_runs(tiny):
    (one, *_) = planned_runs(tiny, HASHES, {})
    assert one.code == code_version.code_version()
    assert replace(one, code="0.2.0/another").identity != one.identity


def test_the_commit_is_that_of_the_package_and_tells_of_changes(tmp_path, monkeypatch):
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(code_version, "ROOT", package)
    code_version.commit.cache_clear()
    assert code_version.commit() == ""  # no repository, or one that does not know the package
    git("init", "-q")
    (package / "one.py").write_text("one = 1")
    code_version.commit.cache_clear()
    assert code_version.commit() == ""
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    code_version.commit.cache_clear()
    assert code_version.commit() == git("rev-parse", "--short=12", "HEAD").strip()
    (package / "one.py").write_text("one = 2")
    code_version.commit.cache_clear()
    assert code_version.commit().endswith("+")
    code_version.commit.cache_clear()


COUNTED = {"cleaning", "few_shot", "newton", "hypergradients", "run", "sets", "solvers"}
"""Packages that runs execute: a change in them makes other runs."""


def test_every_package_is_counted_or_excluded():
    """A new package must be put into one of the two lists: does it change the numbers of a run?"""
    root = Path(bilevel.__file__).parent
    packages = {path.parent.name for path in root.glob("*/__init__.py")}
    assert packages - set(code_version.EXCLUDED) == COUNTED
    files = set(code_version.covered_files())
    assert {name.partition("/")[0] for name in files if "/" in name} == COUNTED | {"experiments"}
    modules = {path.name for path in root.glob("*.py")} - set(code_version.EXCLUDED)
    assert {"problem.py", "lower.py"} <= modules <= files


def test_what_makes_a_run_is_counted_and_reports_are_not():
    files = code_version.covered_files()
    assert {"solvers/dmlcbo.py", "sets/simplex.py", "run/minimize.py", *code_version.INCLUDED} <= set(files)
    assert not [name for name in files if name.startswith(("cli/", "experiments/report/"))]
