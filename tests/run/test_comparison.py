"""compare: one budget for all, F at the solved lower level, refusals with reasons, interruption."""

import csv
import math

import pytest
import torch

import bilevel
from bilevel.testing.known_problems import known_problems

KNOWN = {known.name: known for known in known_problems()}
SOLVERS = {
    "soba": bilevel.solvers.ProjectedSOBA(upper_step=0.4),
    "meha": bilevel.solvers.MEHA(upper_step=0.5, penalty=1.0),
    "sigd": bilevel.solvers.SIGD(upper_step=0.5),
}


@pytest.fixture(scope="module")
def on_the_ball():
    known = KNOWN["l2 ball"]
    return bilevel.compare(known.problem, SOLVERS, bilevel.run.Budget(cost=300), points=8)


def test_all_spend_the_same(on_the_ball):
    for name in ("soba", "meha"):
        costs = [row.cost for row in on_the_ball.of(name)]
        assert costs[0] == 0
        assert costs == sorted(costs)
        assert 290 <= costs[-1] <= 300
        assert 8 <= len(costs) <= 16


def test_a_run_in_pieces_is_the_run(on_the_ball):
    """The pieces are one run of minimize: the same bits and the same costs."""
    known, solution = KNOWN["l2 ball"], on_the_ball.solutions["soba"]
    steps = int(solution.stats["steps"])
    whole = bilevel.minimize(known.problem, known.x0, known.y0, solver=SOLVERS["soba"], steps=steps)
    assert whole.x.equal(solution.x)
    for name in bilevel.linearization.Costs().as_dict():
        assert whole.stats[name] == solution.stats[name]


def test_values_are_those_of_the_solved_lower_level(on_the_ball):
    known = KNOWN["l2 ball"]
    first, last = on_the_ball.of("soba")[0], on_the_ball.of("soba")[-1]
    assert first.value == pytest.approx(float(known.value(known.x0)), rel=1e-8)
    assert first.hypergradient_norm == pytest.approx(float(known.gradient(known.x0).norm()), rel=1e-4)
    x = on_the_ball.solutions["soba"].x
    assert last.value == pytest.approx(float(known.value(x)), rel=1e-6, abs=1e-12)
    assert last.value < 0.01 * first.value


def test_a_solver_that_cannot_take_the_set_is_listed_with_the_reason(on_the_ball):
    assert "polyhedral" in on_the_ball.refused["sigd"]
    assert on_the_ball.table()[-1]["solver"] == "sigd"
    assert "sigd did not run: SIGD cannot use set L2Ball" in str(on_the_ball)


def test_the_table_has_the_best_first(on_the_ball):
    values = [line["value"] for line in on_the_ball.table() if line["value"] is not None]
    assert values == sorted(values)
    lines = str(on_the_ball).splitlines()
    assert lines[0].split() == [
        "solver",
        "F(x)",
        "|h|",
        "residual",
        "cost",
        "projections",
        "seconds",
        "steps",
        "status",
    ]
    assert len(lines) == 4


def test_csv(on_the_ball, tmp_path):
    path = on_the_ball.to_csv(tmp_path / "rows.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(on_the_ball.rows)
    assert float(rows[-1]["value"]) == on_the_ball.rows[-1].value


def test_plot(on_the_ball, tmp_path):
    pytest.importorskip("matplotlib")
    figure = on_the_ball.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert len(figure.axes) == 6
    assert all(len(axis.lines) == 2 for axis in figure.axes)


def test_a_budget_of_seconds():
    known = KNOWN["simplex"]
    result = bilevel.compare(known.problem, [SOLVERS["soba"]], 0.3, points=4)
    seconds = result.of("ProjectedSOBA")[-1].seconds
    assert 0.1 < seconds < 0.9  # steps are timed, and a busy machine makes some longer than expected


def test_one_dear_step_is_taken_even_beyond_the_budget():
    known = KNOWN["simplex"]
    result = bilevel.compare(known.problem, [bilevel.solvers.SIGD()], bilevel.run.Budget(cost=3), points=4)
    assert [row.step for row in result.rows] == [0, 1]
    used = result.table()[0]["used"]
    assert used == result.rows[-1].cost / 3 > 1
    assert f"steps, {used:.3g} times the budget" in str(result)


def test_names_of_a_list():
    known = KNOWN["box"]
    solvers = [bilevel.solvers.MEHA(), bilevel.solvers.MEHA(penalty=5.0)]
    result = bilevel.compare(known.problem, solvers, bilevel.run.Budget(cost=40), points=1)
    assert list(result.solutions) == ["MEHA", "MEHA 2"]


class Interrupts(bilevel.solvers.ProjectedSOBA):
    """Ctrl-C at its fourth step."""

    def step(self, problem, state):
        if state.step == 3:
            raise KeyboardInterrupt
        return super().step(problem, state)


def test_an_interruption_keeps_what_there_is():
    known = KNOWN["box"]
    solvers = {"first": SOLVERS["soba"], "stopped": Interrupts(), "never": SOLVERS["meha"]}
    result = bilevel.compare(known.problem, solvers, bilevel.run.Budget(cost=60), points=3)
    assert result.solutions["stopped"].status is bilevel.Status.INTERRUPTED
    assert result.solutions["stopped"].stats["steps"] == 3
    assert len(result.of("first")) > 1
    assert "interrupted" in result.refused["never"]


def test_divergence_is_a_status_and_not_the_end():
    known = KNOWN["free space"]
    solvers = {"wild": bilevel.solvers.ProjectedSOBA(upper_step=1e300), "soba": SOLVERS["soba"]}
    result = bilevel.compare(known.problem, solvers, bilevel.run.Budget(cost=200), points=3)
    assert result.solutions["wild"].status is bilevel.Status.DIVERGED
    assert result.solutions["soba"].status is bilevel.Status.STEPS


class Breaks(bilevel.solvers.ProjectedSOBA):
    """An error of its own at its third step."""

    def step(self, problem, state):
        if state.step == 2:
            raise ZeroDivisionError("a bug in a solver")
        return super().step(problem, state)


class NeverStarts(bilevel.solvers.ProjectedSOBA):
    def init(self, problem, x, y, seeds):
        raise OSError("no data")


def test_an_error_of_one_solver_is_a_line_of_the_table_and_not_the_end():
    known = KNOWN["box"]
    solvers = {"first": SOLVERS["soba"], "breaks": Breaks(), "never": NeverStarts(), "last": SOLVERS["meha"]}
    result = bilevel.compare(known.problem, solvers, bilevel.run.Budget(cost=100), points=10)
    assert list(result.solutions) == ["first", "breaks", "last"]
    assert result.failed["breaks"].endswith("steps, ZeroDivisionError: a bug in a solver")
    assert result.refused == {"never": "OSError: no data"}
    statuses = {line["solver"]: line["status"] for line in result.table()}
    assert statuses["breaks"].startswith("failed: after")
    assert statuses["never"] == "did not run: OSError: no data"
    assert "breaks failed: after" in str(result)


def test_a_start_elsewhere():
    known = KNOWN["box"]
    result = bilevel.compare(known.problem, [SOLVERS["soba"]], bilevel.run.Budget(cost=40), x0=known.optimum, points=1)
    assert result.rows[0].value == pytest.approx(0.0, abs=1e-12)
    plain = bilevel.Problem(known.problem.upper, known.problem.lower, known.problem.constraint, y0=known.y0)
    with pytest.raises(bilevel.InvalidTypeError, match=r"x0 is missing.*Problem\(..., x0=...\)"):
        bilevel.compare(plain, [SOLVERS["soba"]], bilevel.run.Budget(cost=40))


def test_an_unsolved_lower_level_is_said():
    """A condition number of 1e8 and one step per evaluation: what is shown is not F."""
    steep = torch.tensor([1.0, 1e-8]).double()
    problem = bilevel.Problem(
        lambda x, y: (y - 1).square().sum(), lambda x, y: (steep * (y - x).square()).sum(),
        x0=torch.ones(2).double(), y0=torch.zeros(2).double(),
    )  # fmt: skip
    result = bilevel.compare(problem, [bilevel.solvers.MEHA()], bilevel.run.Budget(cost=20), points=1, lower_steps=1)
    assert not result.rows[-1].converged
    assert "lower level not solved at the end" in str(result)


def test_an_unsolved_linear_system_is_no_hypergradient():
    """g has negative curvature along y_2: conjugate gradients stop, and |h| is not a number."""
    saddle = torch.tensor([1.0, -1.0]).double()
    problem = bilevel.Problem(
        lambda x, y: y.sum(), lambda x, y: (saddle * (y - x).square()).sum() / 2, bilevel.sets.Box(-5.0, 5.0),
        x0=torch.zeros(2).double(), y0=torch.zeros(2).double(),
    )  # fmt: skip
    result = bilevel.compare(problem, [bilevel.solvers.MEHA()], bilevel.run.Budget(cost=10), points=1)
    assert math.isnan(result.rows[0].hypergradient_norm)


def test_function_constraints():
    """|h| is not measured there, F and the residual are."""
    problem = bilevel.Problem(
        lambda x, y: (y - 1).square().sum(),
        lambda x, y: (y - x).square().sum(),
        inequality=lambda x, y: (y.square().sum() - 1.0).reshape(1),
        y0=torch.zeros(2).double(),
    )
    result = bilevel.compare(
        problem,
        [bilevel.solvers.BiCGAFFA(), SOLVERS["soba"]],
        bilevel.run.Budget(cost=60),
        x0=torch.zeros(2).double(),
        points=2,
    )
    last = result.of("BiCGAFFA")[-1]
    assert math.isnan(last.hypergradient_norm)
    assert last.value < result.of("BiCGAFFA")[0].value
    assert "function constraints" in result.refused["ProjectedSOBA"]


def test_progress(capsys):
    known = KNOWN["box"]
    bilevel.compare(known.problem, [SOLVERS["soba"]], bilevel.run.Budget(cost=60), progress=True)
    assert "upper" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"solvers": []}, "solvers is empty"),
        ({"solvers": {"a": bilevel.solvers.MEHA}}, r"solvers\['a'\] must be an object"),
        (
            {"solvers": [bilevel.solvers.MEHA(), bilevel.solvers.MEHA]},
            r"solvers\[1\] must be an object such as bilevel.DMLCBO",
        ),
        ({"solvers": 3}, "solvers must be a dictionary"),
        ({"budget": -1.0}, "seconds must be a positive number, got -1.0"),
        ({"budget": math.inf}, "a budget needs a limit"),
        ({"points": 0}, "points must be an integer of at least 1, got 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    known = KNOWN["box"]
    with pytest.raises(bilevel.BilevelError, match=message):
        bilevel.compare(known.problem, **{"solvers": SOLVERS, "budget": 1.0, **arguments})
