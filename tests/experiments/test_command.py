"""`bilevel reproduce`, `bilevel status` and `bilevel results export` on a small table, in this process."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from bilevel.cli import main
from bilevel.experiments import command, worker_pools
from bilevel.experiments.plan import RunSpec
from bilevel.experiments.store import ResultsStore

from .conftest import TINY

PAGES = ("index.html", "table-2.html", "table-2.md")


@pytest.fixture
def reproduce(table, data, tmp_path):
    def call(*more, target="table-2"):
        workers = [] if "--workers" in more else ["--workers", "0"]
        options = ["--configuration", str(table), *workers, "--data", str(data)]
        return main(["reproduce", target, *options, "--results", str(tmp_path / "results"), *more])

    return call


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The results of the whole table, for tests that only read them."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(TINY)
    options = ["--configuration", str(folder / "tiny.toml"), "--workers", "0", "--data", str(data)]
    assert main(["reproduce", "table-2", *options, "--results", str(folder / "results")]) == 0
    return folder / "results"


def test_a_table_from_the_command_to_the_export(reproduce, finished, tmp_path, capsys, monkeypatch):
    results = Path(shutil.copytree(finished, tmp_path / "results"))
    store = ResultsStore(results)
    records = store.records()
    assert [(r.method, r.role) for r in records].count(("dmlcbo", "grid")) == 2
    final = [r for r in records if r.role == "final"]
    assert sorted((r.method, r.seed) for r in final) == [(m, s) for m in ("approx", "dmlcbo") for s in (0, 1)]
    for method in ("dmlcbo", "approx"):
        search = [r for r in records if r.role == "grid" and r.method == method]
        best = min(search, key=lambda r: r.final["solved_upper_value"])
        assert all(r.settings == best.settings for r in final if r.method == method)

    monkeypatch.setattr(worker_pools, "run", None)  # nothing is left to run
    assert reproduce() == 0
    capsys.readouterr()
    assert main(["status", "--results", str(results)]) == 0
    said = capsys.readouterr().out
    assert "finished, 8 of 8 runs done, 0 running, 0 failed" in said
    for kind, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        out = tmp_path / f"runs.{kind}"
        assert main(["results", "export", "--results", str(results), "--format", kind, "--out", str(out)]) == 0
        frame = read(out)
        assert len(frame) == 8
        assert list(frame["final.accuracy"]) == [r.final["accuracy"] for r in records]
        assert {"processor_seconds", "environment.torch", "environment.data", "counts.steps"} <= set(frame.columns)
        assert set(frame["configuration.data.rows"]) == {60}
        assert set(frame["configuration.fixed.inner_steps"].dropna()) == {20}
        assert set(frame["configuration.iterations"]) == {20}
        assert set(frame["configuration.evaluate_every"]) == {10}


def test_the_export_goes_by_the_name_of_its_file_and_names_mistakes(reproduce, finished, tmp_path, capsys):
    where = ["results", "export", "--results", str(finished), "--out", str(tmp_path / "runs.parquet")]
    assert main(where) == 0
    assert (tmp_path / "runs.parquet").read_bytes()[:4] == b"PAR1"
    capsys.readouterr()
    assert main(where) == 2
    assert "add --force" in capsys.readouterr().err
    assert main([*where, "--force", "--experiment", "tabel-2"]) == 2
    assert "there are no runs of 'tabel-2' there: name one of table-2" in capsys.readouterr().err
    assert reproduce("--methods", "dmlcbo", target="table-4") == 2
    assert "is a configuration of table-2, and the target is table-4" in capsys.readouterr().err


def test_a_record_holds_the_configuration_that_its_identity_is_the_hash_of(finished):
    records = ResultsStore(finished, reading=True).records()
    assert len(records) == 8
    assert all(RunSpec(**record.configuration).identity == record.identity for record in records)


def test_a_sweep_that_is_stopped_goes_on_and_says_how(reproduce, tmp_path, capsys, monkeypatch):
    made, run = [], worker_pools.run

    def stopped_after_three(specs, folder):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(specs)
        return run(specs, folder)

    with monkeypatch.context() as patch:
        patch.setattr(worker_pools, "run", stopped_after_three)
        assert reproduce() == 130
    assert "3 runs are in" in (said := capsys.readouterr().err)
    assert "the same command continues" in said
    monkeypatch.setattr(worker_pools, "run", lambda specs, folder: made.append(specs) or run(specs, folder))
    assert reproduce() == 0
    assert len(made) == len({specs[0].identity for specs in made}) == 8


def test_a_second_driver_is_refused_and_status_is_not(reproduce, finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "results")
    with ResultsStore(tmp_path / "results").only_driver():
        assert reproduce() == 2
        assert f"is writing to {tmp_path / 'results'}: wait for it" in capsys.readouterr().err
        assert main(["status", "--results", str(tmp_path / "results")]) == 0
        assert "8 runs" in capsys.readouterr().out


def test_a_quick_look_says_so(reproduce, tmp_path, capsys):
    assert reproduce("--quick", "--methods", "dmlcbo") == 0
    said = capsys.readouterr()
    for text in (said.err, said.out, *((tmp_path / "results" / "report" / name).read_text() for name in PAGES)):
        assert "This is a quick look (--quick)" in text
    assert reproduce("--methods", "dmlcbo") == 0
    for text in (*capsys.readouterr(), *((tmp_path / "results" / "report" / name).read_text() for name in PAGES)):
        assert "quick look" not in text


def test_status_and_export_find_a_quick_look_that_is_all_there_is(table, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "report_runs", lambda *_: None)
    options = ["--configuration", str(table), "--workers", "0", "--data", str(data), "--methods", "dmlcbo"]
    for more, folder, runs in ((["--quick"], "bilevel-results/quick", 1), ([], "bilevel-results", 4)):
        assert main(["reproduce", "table-2", *options, *more]) == 0
        capsys.readouterr()
        assert main(["status"]) == 0
        first, *_, last = capsys.readouterr().out.splitlines()
        assert (first, last.split(",")[0]) == (f"{folder}:", f"{runs} runs")
        assert main(["results", "export", "--out", "runs.csv", "--force"]) == 0
        assert len(pd.read_csv("runs.csv")) == runs


def test_the_report_says_how_it_was_made(reproduce, tmp_path, capsys):
    assert reproduce("--seeds", "1", "--budget", "50", "--methods", "approx") == 0
    shown = capsys.readouterr().out
    assert f"report: {tmp_path / 'results' / 'report' / 'index.html'}" in shown
    assert re.search(r"Madelon +Approx +\S+ \+- \S+ +\d+\.\d+ +1 +0\.\d+ +\d+\.\d+ ", shown)  # one seed has no spread
    assert "--out runs.csv" in shown
    text = (tmp_path / "results" / "report" / "index.html").read_text()
    assert "final runs end after 20 iterations or 50 s of training, whichever comes first; 1 seed." in text
    assert re.search(r"Step sizes were searched on one other seed, \d+ settings for 50 s each", text)
    assert "Not the paper&#39;s setting: madelon" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--datasets", "madelom"), "there is no dataset 'madelom' in this table. Did you mean 'madelon'?"),
        (("--methods", "dmlcb"), "there is no method 'dmlcb' in this table. Did you mean 'dmlcbo'?"),
        (("--seeds", "0"), "seeds = 0"),
        (("--budget", "-3"), "limit_seconds = -3"),
        (("--seeds", "1001"), "the step sizes are searched on seed 1000, which is one of the 1001 seeds"),
        (("--workers", "-1"), "workers must be at least 0"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(reproduce, tmp_path, capsys, options, message):
    assert reproduce(*options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_missing_data_and_missing_results_are_named(reproduce, table, tmp_path, capsys):
    empty = ["--data", str(tmp_path)]
    options = ["--configuration", str(table), "--workers", "0", "--results", str(tmp_path / "r")]
    assert main(["reproduce", "table-2", *options, *empty]) == 2
    assert "bilevel data fetch madelon" in capsys.readouterr().err
    assert main(["status", "--results", str(tmp_path / "r")]) == 0
    assert "stopped, 0 of 8 runs done" in capsys.readouterr().out
    assert main(["status", "--results", str(tmp_path / "none")]) == 2
    assert "holds no results" in capsys.readouterr().err


def test_a_quick_look_needs_no_download(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--quick", "--data", str(tmp_path / "empty"), "--workers", "0", "--seeds", "1", "--budget", "0.05"]
    assert main(["reproduce", "table-2", *options, "--methods", "dmlcbo"]) == 0
    shown = capsys.readouterr()
    assert "bilevel data fetch cod-rna fashion-mnist madelon mnist); this quick look uses digits" in shown.err
    assert re.search(r"^digits +DMLCBO", shown.out, re.MULTILINE)


def test_all_missing_data_are_named_with_one_command(tmp_path, capsys):
    assert main(["reproduce", "table-2", "--data", str(tmp_path), "--results", str(tmp_path / "results")]) == 2
    assert "`bilevel data fetch cod-rna fashion-mnist madelon mnist`" in capsys.readouterr().err
