"""`lower_step` of the double loops: one step from y is P_Y(y - lower_step grad_y g), and "auto" is 1/L."""

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.random import Seeds

METRIC = torch.tensor([1.0, 2.0, 4.0]).double()
X, Y = torch.tensor([0.5, -0.3, 0.2]).double(), torch.tensor([0.1, 0.1, 0.1]).double()

SOLVERS = {
    "approx": lambda step: bilevel.Approx(inner="plain", inner_steps=1, step_rule="fixed", lower_step=step),
    "implicit": lambda step: bilevel.Implicit(inner="plain", inner_steps=1, step_rule="fixed", lower_step=step),
    "rmd-pcd": lambda step: bilevel.solvers.RMDPCD(steps=1, inner="full", step_rule="fixed", lower_step=step),
    "vpbgd": lambda step: bilevel.solvers.VPBGD(lower_steps=1, lower_step=step),
}


def problem():
    return bilevel.Problem(
        lambda x, y: (y - 1).square().sum() / 2,
        lambda x, y: (METRIC * (y - x).square()).sum() / 2,
        bilevel.sets.L1Ball(0.6),
    )


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("step", [0.01, 0.2, "auto"])
def test_one_step_is_that_of_projected_gradient(name, step):
    solver, asked = SOLVERS[name](step), problem()
    state = solver.init(asked, X, Y, Seeds())
    if name == "vpbgd":
        found = solver.step(asked, state).auxiliary
    else:
        found = state.y
    length = 1 / 4.0 if step == "auto" else step
    expected = bilevel.sets.L1Ball(0.6).project(Y - length * METRIC * (Y - X))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_step_that_is_no_positive_number_is_named(name):
    for wrong in (0.0, -1.0, "large"):
        with pytest.raises(ValueError, match="lower_step"):
            SOLVERS[name](wrong)


def test_a_solved_lower_level_has_no_new_curvature():
    """There y moves in its last digits, and a quotient of two such moves would be one of rounding errors."""
    for seed in range(4):  # with seed 1 it was 4 % above the largest eigenvalue
        generator = torch.Generator().manual_seed(seed)
        a = torch.randn(30, 30, generator=generator, dtype=torch.float64)
        matrix, b = a @ a.T / 30 + 0.1 * torch.eye(30, dtype=torch.float64), a[0]
        problem = bilevel.Problem(
            lambda x, y: (x * y).sum(), lambda x, y, G=matrix, b=b: y @ (0.5 * (G @ y) - b - x), sets.Box(-1e3, 1e3)
        )
        largest = float(torch.linalg.eigvalsh(matrix)[-1])
        x, y = torch.zeros(30, dtype=torch.float64), torch.linalg.solve(matrix, b)
        solver = bilevel.solvers.VPBGD(lower_steps=5, lower_step=1 / largest)
        state = solver.step(problem, solver.init(problem, x, y, Seeds()))
        assert state.curvature == pytest.approx(largest, rel=1e-14)
