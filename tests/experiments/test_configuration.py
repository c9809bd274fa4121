"""Configurations hold the paper's settings, and say which key is wrong."""

import math

import pytest

from bilevel.errors import InvalidInput
from bilevel.experiments.configuration import TABLES, load_configuration
from bilevel.files import FileMissing

from .conftest import TINY


def test_table_2_has_the_grids_and_limits_of_the_paper():
    table = load_configuration("table-2")
    pairs = {name: math.prod(map(len, method.grid.values())) for name, method in table.methods.items()}
    assert pairs.pop("dmlcbo") == pairs.pop("dmlcbo-default") == 36
    assert set(pairs.values()) == {49}
    assert (table.run.iterations, table.run.evaluate_every, table.run.seeds) == (10_000, 100, 10)
    assert table.grid.limit_seconds == 60
    assert table.grid.seed not in range(table.run.seeds)
    sizes = {name: (data.rows, data.trusted, data.c, data.flipped) for name, data in table.datasets.items()}
    assert sizes == {
        "cod-rna": (5000, 5000, 1e-3, 0.3), "mnist": (2000, 2000, 1e-3, 0.3), "madelon": (1000, 1000, 1e-3, 0.3),
        "fashion-mnist": (2000, 2000, 1e-3, 0.3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "setting", "values"), [("table-4", "Q", [1, 3, 5, 7]), ("table-5", "eta", [0.1, 0.5, 1.0])]
)
def test_ablations_vary_one_setting_of_dmlcbo_in_table_2(name, setting, values):
    table, base = load_configuration(name), load_configuration("table-2")
    assert (table.vary.setting, table.vary.values) == (setting, values)
    assert table.datasets == base.datasets
    assert table.methods == {"dmlcbo": base.methods["dmlcbo"]}


def test_every_table_can_be_read_and_has_a_quick_look():
    for name in TABLES:
        quick = load_configuration(name).quickly()
        assert quick.run.limit_seconds <= 15


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("iterations = 20", "iteratons = 20", r"unknown key 'run.iteratons'. Did you mean 'iterations'\?"),
        ("trusted = 50", "trustd = 50", r"datasets.madelon: unknown key 'trustd'. Did you mean 'trusted'\?"),
        ("[grid]", "[gird]", r"unknown key 'gird'. Did you mean 'grid'\?"),
        ("seeds = 2", "seeds = 0", "run.seeds = 0: Input should be greater than or equal to 1"),
        ('scaling = "standard"', 'scaling = "cubic"', "scaling = 'cubic': Input should be 'unit' or 'standard'"),
        ("[grid]", "[grid]\nfirst_look_seconds = 3", "first_look_seconds and best_of_each go together"),
        ('title = "tiny"', "title = ", "is not TOML"),
    ],
)
def test_a_mistake_is_named(table, right, wrong, message):
    table.write_text(TINY.replace(right, wrong, 1))
    with pytest.raises(InvalidInput, match=message):
        load_configuration(table)


def test_unknown_names_are_answered_with_the_nearest(tiny, tmp_path):
    with pytest.raises(InvalidInput, match=r"no dataset 'madelom' in this table. Did you mean 'madelon'\?"):
        tiny.only(datasets=["madelom"])
    with pytest.raises(InvalidInput, match=r"no method 'aprox' in this table. Did you mean 'approx'\?"):
        tiny.only(methods=["aprox"])
    with pytest.raises(FileMissing, match="there is no configuration"):
        load_configuration(tmp_path / "none.toml")


def test_a_budget_limits_search_and_final_runs(tiny):
    limited = tiny.limited(seeds=5, budget=7.0)
    assert (limited.run.seeds, limited.run.limit_seconds, limited.grid.limit_seconds) == (5, 7.0, 7.0)
    assert limited.limited(budget=20.0).grid.limit_seconds == 7.0  # the search is not made longer
    with pytest.raises(InvalidInput, match="limit_seconds = -1"):
        tiny.limited(budget=-1.0)
