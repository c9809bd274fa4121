"""Configurations hold the paper's settings, and say which key is wrong."""

import math
import re

import pytest

from bilevel.errors import InvalidInputError, MissingFileError
from bilevel.experiments.configuration import TABLES, load_configuration
from bilevel.experiments.methods import check_settings

from .conftest import FEW_SHOT, TINY


def test_table_2_has_the_grids_and_limits_of_the_paper():
    table = load_configuration("table-2")
    pairs = {name: math.prod(map(len, method.grid.values())) for name, method in table.methods.items()}
    ours = ("dmlcbo", "dmlcbo-linear-solve", "dmlcbo-as-published")
    assert {pairs.pop(name) for name in ours} == {36}
    assert set(pairs.values()) == {49}
    assert (table.run.iterations, table.run.evaluate_every, table.run.seeds) == (10_000, 100, 10)
    assert table.grid.limit_seconds == 5
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
        quick = load_configuration(name).quick_look()
        assert quick.run.limit_seconds <= 15


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("iterations = 20", "iteratons = 20", r"unknown key 'run.iteratons'. Did you mean 'iterations'\?"),
        ("trusted = 50", "trustd = 50", r"datasets.madelon: unknown key 'trustd'. Did you mean 'trusted'\?"),
        ("[grid]", "[gird]", r"unknown key 'gird'. Did you mean 'grid'\?"),
        ("seeds = 2", "seeds = 0", "run.seeds = 0: Input should be greater than or equal to 1"),
        ('scaling = "standard"', 'scaling = "cubic"', "scaling = 'cubic': Input should be 'unit' or 'standard'"),
        ('title = "tiny"', "title = ", "is not TOML"),
    ],
)
def test_a_mistake_is_named(table, right, wrong, message):
    table.write_text(TINY.replace(right, wrong, 1))
    with pytest.raises(InvalidInputError, match=message):
        load_configuration(table)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("grid = { uper_step = [0.1] }", r"dmlcbo has no setting 'uper_step'. Did you mean 'upper_step'\?"),
        (
            "grid = { upper_step = [0.1], lower_step = [1.0] }",
            "dmlcbo has no setting 'lower_step'. .*Known: upper_step",
        ),
        (
            "settings = { }",
            r"\[methods.dmlcbo\]: .* cannot be used: upper_step is missing: give it in settings or grid",
        ),
        ("grid = { upper_step = [-0.1] }", "got -0.1"),
        (
            "grid = { upper_step = ['fast'] }",
            "first values of its settings cannot be used: could not convert .* 'fast'",
        ),
    ],
)
def test_few_shot_methods_have_an_upper_step_and_nothing_else(table, part, message):
    head, _, _ = FEW_SHOT.partition("grid = ")
    table.write_text(head + part)
    with pytest.raises(InvalidInputError, match=message):
        check_settings(load_configuration(table))


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("eta = 0.1", "etta = 0.1", "[methods.dmlcbo.settings]: dmlcbo has no setting 'etta'. Did you mean 'eta'?"),
        ("lower_step = [1.0]", "lower_stp = [1.0]", "[methods.dmlcbo.grid]: dmlcbo has no setting 'lower_stp'. Did"),
        ("quick = { upper_step", "quick = { uper_step", "[methods.dmlcbo.quick]: dmlcbo has no setting 'uper_step'."),
        ("[1.0, 0.1]", "[1.0, -0.1]", "[methods.dmlcbo.grid]: upper_step = -0.1 cannot be used: upper_step must be"),
        ("[1.0, 0.1]", "[]", "[methods.dmlcbo.grid]: upper_step has no values: give at least one"),
        ("eta = 0.1", "eta = 'much'", "[methods.dmlcbo]: the first values of its settings cannot be used: eta must"),
        (
            "upper_step = [1.0, 0.1], lower_step = [0.1]",
            "lower_step = [0.1]",
            "multiplies upper_step, which is missing",
        ),
    ],
)
def test_settings_that_a_method_does_not_take_are_named(table, right, wrong, message):
    table.write_text(TINY.replace(right, wrong, 1))
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        check_settings(load_configuration(table))


def test_all_tables_of_the_library_can_be_built():
    for name in TABLES:
        check_settings(load_configuration(name))


def test_unknown_names_are_answered_with_the_nearest(tiny, tmp_path):
    with pytest.raises(InvalidInputError, match=r"no dataset 'madelom' in this table. Did you mean 'madelon'\?"):
        tiny.select(datasets=["madelom"])
    with pytest.raises(InvalidInputError, match=r"no method 'aprox' in this table. Did you mean 'approx'\?"):
        tiny.select(methods=["aprox"])
    with pytest.raises(MissingFileError, match="there is no configuration"):
        load_configuration(tmp_path / "none.toml")


def test_a_budget_limits_search_and_final_runs(tiny):
    limited = tiny.limit(seeds=5, budget=7.0)
    assert (limited.run.seeds, limited.run.limit_seconds, limited.grid.limit_seconds) == (5, 7.0, 7.0)
    assert limited.limit(budget=20.0).grid.limit_seconds == 7.0  # the search is not made longer
    with pytest.raises(InvalidInputError, match="limit_seconds = -1"):
        tiny.limit(budget=-1.0)
