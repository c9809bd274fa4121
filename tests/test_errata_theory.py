"""Errata 7 to 12 of docs/errata.md, and the page itself; test_errata.py has items 1 to 6."""

import itertools
import logging
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from sklearn.datasets import load_digits
from torch.nn.functional import softplus

import bilevel
from bilevel import DMLCBO, LinearSolve, Neumann, Problem, Status, sets
from bilevel.diagnostics import Constants, Theory
from bilevel.hypergradients import Exact, Perturbed
from bilevel.random import RandomStreams

DOUBLE = torch.float64
PAGE = Path(__file__).parents[1] / "docs" / "errata.md"
log = logging.getLogger("errata")


def page_section(item):
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return " ".join(next(part for part in sections if part.startswith(f"{item}. ")).split())


def stated(item, text, value, *, rel):
    """Section `item` of the page says `text`, and the value computed here is that number up to `rel`."""
    log.info("erratum %d: the page says %s, computed %.6g", item, text, value)
    assert re.search(rf"(?<![\d.]){re.escape(text)}(?![\d]|\.\d)", page_section(item)), f"no {text} in {item}"
    assert value == pytest.approx(float(text), rel=rel)


def vector(*entries):
    return torch.tensor(entries, dtype=DOUBLE)


# 7. The SVM head.


def codes(classes, off):
    """Row c: 1 at class c and `off` elsewhere."""
    return torch.full((classes, classes), off, dtype=DOUBLE).fill_diagonal_(1.0)


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_class_codes_are_centred_with_minus(classes):
    """Erratum 7: with -1/(k-1) codes add up to 0 and repel each other; with + neither holds."""
    k = classes
    minus, plus = codes(k, -1 / (k - 1)), codes(k, 1 / (k - 1))
    assert float(minus.sum(1).abs().max()) < 1e-14
    assert plus.sum(1).tolist() == pytest.approx([2.0] * k)
    assert float((minus @ minus.T)[0, 1]) == pytest.approx(-k / (k - 1) ** 2)
    assert float((plus @ plus.T)[0, 1]) == pytest.approx((3 * k - 4) / (k - 1) ** 2)


def support_gram(ridge):
    """G = K o (V V') + ridge I for 5 classes of 5 rows with 100 features; in each class one row comes twice."""
    features = torch.randn(25, 100, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) / 10
    features[1::5] = features[::5]
    code = codes(5, -1 / 4).repeat_interleave(5, dim=0)
    return (features @ features.T) * (code @ code.T) + ridge * torch.eye(25, dtype=DOUBLE)


def test_svm_head_needs_a_ridge():
    """Erratum 7: without a ridge G is singular and y* depends on where one starts; with one it does not."""
    values = torch.linalg.eigvalsh(support_gram(0.0))
    stated(7, "5", int((values < 1e-10 * values[-1]).sum()), rel=0)
    ends = {}
    for ridge in (0.0, 0.01):
        G = support_gram(ridge)
        problem = Problem(lambda x, y: y.sum(), lambda x, y, G=G: y @ G @ y / 2 - x * y.sum(), sets.Box(0.0, 10.0))
        starts = (torch.zeros(25, dtype=DOUBLE), 0.5 * (torch.arange(25) % 5 == 0).double())
        solved = [bilevel.solve_lower(problem, torch.tensor(1.0, dtype=DOUBLE), y0, tol=1e-9) for y0 in starts]
        assert all(solution.converged for solution in solved)
        ends[ridge] = float((solved[0].y - solved[1].y).norm())
    log.info("erratum 7: distance between two solutions by ridge: %s", ends)
    assert ends[0.0] > 0.1
    assert ends[0.01] < 1e-6


# 8. Q = 3 is far from the limit when eta mu is small.

CURVATURES = vector(1.0, 0.02)


def slow_problem(weights):
    return Problem(
        upper=lambda x, y: weights @ y,
        lower=lambda x, y: (CURVATURES * y.square()).sum() / 2 - x @ y,
        y0=vector(0.0, 0.0),
    )


def full_sum(problem, x, y, eta, terms):
    method = Neumann(terms=terms, eta=eta, truncation="full", smoothing=Exact())
    return bilevel.hypergradient(problem, x, y, method=method)


def relative_error(estimate, truth):
    return float((estimate - truth).norm() / truth.norm())


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("terms", [1, 3, 10, 100, 1000])
def test_bias_of_the_truncated_series(terms):
    """Erratum 8: along the smallest curvature mu the relative error is exactly (1 - eta mu)^Q."""
    problem, x = slow_problem(vector(0.0, 1.0)), vector(0.0, 0.0)
    error = relative_error(full_sum(problem, x, x, 0.5, terms), bilevel.hypergradient(problem, x, x))
    constants = Constants(mu=0.02, smoothness=1, cross=1, upper_slope=1, upper_smoothness=0, dimension=2)
    theory = Theory(constants=constants, delta=1.0, eta=0.5)
    assert error == pytest.approx(theory.contraction**terms, rel=1e-9)
    assert error * float(bilevel.hypergradient(problem, x, x).norm()) == pytest.approx(theory.bias(terms), rel=1e-9)
    if terms == 3:
        stated(8, "0.970", error, rel=1e-3)


def test_three_terms_give_a_direction_not_the_gradient():
    """Erratum 8: the linear solve has no such bias; three terms point elsewhere and are far too short."""
    problem, x = slow_problem(vector(1.0, 1.0)), vector(0.0, 0.0)
    truth = bilevel.hypergradient(problem, x, x)
    assert relative_error(truth, -1 / CURVATURES) == pytest.approx(2.0, rel=1e-12)  # h = +G^-1 f_y here
    assert relative_error(truth, 1 / CURVATURES) < 1e-10
    three = full_sum(problem, x, x, 0.5, 3)
    stated(8, "0.87", cosine(three, truth), rel=5e-3)
    stated(8, "0.97", relative_error(three, truth), rel=5e-3)
    assert isinstance(DMLCBO(upper_step=0.1).estimator, LinearSolve)


def digits(reduction=torch.mean):
    """Hyper-cleaning of digits 6 and 9, pixels / 16: 160 rows with 48 labels flipped, 100 trusted rows."""
    pixels, labels = load_digits(return_X_y=True)
    kept = np.isin(labels, (6, 9))
    order = np.random.default_rng(0).permutation(int(kept.sum()))
    rows = torch.from_numpy(pixels[kept][order] / 16)
    signs = torch.from_numpy(np.where(labels[kept][order] == 6, 1.0, -1.0))
    noisy = torch.cat([-signs[:48], signs[48:160]])
    problem = Problem(
        upper=lambda x, y: softplus(-signs[160:260] * (rows[160:260] @ y)).mean(),
        lower=lambda x, y: reduction(torch.sigmoid(x) * softplus(-noisy * (rows[:160] @ y))) + 1e-3 * y.square().sum(),
        constraint=sets.L1Ball(1.0),
        y0=torch.zeros(64, dtype=DOUBLE),
    )
    return problem, torch.zeros(160, dtype=DOUBLE)


def test_bias_on_digits():
    """Erratum 8: on hyper-cleaning with the paper's eta = 0.5, Q = 3 is short by 92 %."""
    problem, x = digits()
    y = bilevel.solve_lower(problem, x).y
    truth = bilevel.hypergradient(problem, x, y)
    stated(8, "0.92", relative_error(full_sum(problem, x, y, 0.5, 3), truth), rel=0.01)
    stated(8, "0.45", relative_error(full_sum(problem, x, y, 0.5, 30), truth), rel=0.02)
    assert relative_error(full_sum(problem, x, y, 0.5, 300), truth) < 1e-3


# 9. An exact hypergradient can be trapped on a face.

STIFFNESS, TRAPPED_AT = vector(0.1, 1.0), vector(1.5, 0.03)


def trap():
    """y* = (1, 0) while 0.1 (x_1 - 1) > |x_2|: F = 1/4 is flat there, and F* = 0 at y = (1/2, 1/2)."""
    return Problem(
        upper=lambda x, y: (y - 0.5).square().sum() / 2,
        lower=lambda x, y: (STIFFNESS * (y - x).square()).sum() / 2,
        constraint=sets.L1Ball(1.0),
        y0=vector(0.0, 0.0),
    )


def descend(problem, y, *, lower_steps=None, smoothing=None, steps=60):
    """F after descent on x by the linear solve, y being solved (None) or moved by plain projected steps."""
    x, method = TRAPPED_AT, LinearSolve(eta=1.0, smoothing=smoothing or Exact())
    for seed in range(steps):
        if lower_steps is None:
            y = bilevel.solve_lower(problem, x, y).y
        for _ in range(lower_steps or 0):
            y = problem.constraint.project(y - problem.lower_grad(x, y))
        x = x - 0.2 * bilevel.hypergradient(problem, x, y, method=method, seed=seed)
    return float(bilevel.upper_value(problem, x))


def test_a_solved_lower_level_traps_the_exact_hypergradient():
    """Erratum 9: a coordinate outside the support never enters; h = 0 at F = 1/4 although F* = 0."""
    problem = trap()
    assert bilevel.hypergradient(problem, TRAPPED_AT).tolist() == [0.0, 0.0]
    assert descend(problem, problem.y0) == pytest.approx(0.25)
    assert descend(problem, problem.y0, smoothing=Perturbed(radius=1e-6)) == pytest.approx(0.25)


def test_smoothing_of_the_size_of_the_distance_to_the_kink_escapes():
    """Erratum 9: z lies 0.014 from the kink z_1 - z_2 = 1: a radius of 0.005 is too small, 0.05 is not."""
    problem = trap()
    y = bilevel.solve_lower(problem, TRAPPED_AT).y
    z = y - STIFFNESS * (y - TRAPPED_AT)
    stated(9, "0.014", float(z[0] - z[1] - 1) / math.sqrt(2), rel=0.02)
    assert descend(problem, y, smoothing=Perturbed(radius=0.005)) == pytest.approx(0.25)
    assert descend(problem, y, smoothing=Perturbed(radius=0.05)) < 1e-6


@pytest.mark.parametrize(("lower_steps", "escapes"), [(1, True), (10, True), (30, False)])
def test_inexact_lower_levels_let_coordinates_in(lower_steps, escapes):
    """Erratum 9: from y = 0 a few projected steps per outer step escape; 30 solve the lower level."""
    value = descend(trap(), vector(0.0, 0.0), lower_steps=lower_steps)
    assert value < 1e-6 if escapes else value == pytest.approx(0.25)


def test_the_single_loop_escapes_from_a_cold_start_only():
    """Erratum 9: a fixed step reaches F* from y = 0, and from y*(x) only if its smoothing reaches the kink."""
    problem = trap()
    solved = bilevel.solve_lower(problem, TRAPPED_AT).y
    wide = DMLCBO(upper_step=0.1, hypergradient=LinearSolve(smoothing=Perturbed(radius=0.05)))
    ends = [
        bilevel.minimize(problem, TRAPPED_AT, y0, solver=solver, steps=300).x
        for y0, solver in ((vector(0.0, 0.0), DMLCBO(upper_step=0.1)), (solved, DMLCBO(upper_step=0.1)), (solved, wide))
    ]
    cold, warm, smoothed = (float(bilevel.upper_value(problem, x)) for x in ends)
    assert cold < 1e-6
    assert warm == pytest.approx(0.25)
    assert smoothed < 1e-6


# 10. FC100.


def test_the_page_disowns_the_printed_fc100_numbers():
    """Erratum 10: the page says which protocol counts, what the paper prints, and where our numbers are."""
    text = page_section(10)
    for needed in ("85.25", "86.93", "novel classes", "standard protocol", "paper-results.md"):
        assert needed in text, needed


# 11. The set of h(H), Clarke's gradient and the hull.


def h_of(H, *, G, cross, upper_x, upper_y, eta):
    """h(H) = f_x - eta G_xy H' [I - (I - eta G) H']^-1 f_y for one matrix H."""
    eye = torch.eye(len(G), dtype=DOUBLE)
    return upper_x - eta * cross @ H.T @ torch.linalg.solve(eye - (eye - eta * G) @ H.T, upper_y)


def test_the_set_of_h_is_not_in_clarkes_gradient():
    """Erratum 11: F(x) = x has gradient 1 everywhere, yet h(I) = 2 and h(0) = 0 at x = 0: a false zero."""
    problem = Problem(
        upper=lambda x, y: y[0] - y[1],
        lower=lambda x, y: (y - torch.cat([x, -x])).square().sum() / 2,
        constraint=sets.NonNegative(),
        y0=vector(0.0, 0.0),
    )
    for point in (-0.7, -1e-3, 0.0, 1e-3, 0.7):
        assert float(bilevel.upper_value(problem, vector(point))) == pytest.approx(point, abs=1e-9)
        if point:
            assert float(bilevel.hypergradient(problem, vector(point))) == pytest.approx(1.0, abs=1e-9)
    parts = {
        "G": torch.eye(2, dtype=DOUBLE), "cross": torch.tensor([[-1.0, 1.0]], dtype=DOUBLE),
        "upper_x": vector(0.0), "upper_y": vector(1.0, -1.0), "eta": 0.5,
    }  # fmt: skip
    assert float(h_of(torch.eye(2, dtype=DOUBLE), **parts)) == pytest.approx(2.0)
    assert float(h_of(torch.zeros(2, 2, dtype=DOUBLE), **parts)) == 0.0
    # What the library returns at the kink is an element of this set, and so is every smoothed draw.
    corners = {float(h_of(torch.diag(vector(*d)), **parts)) for d in itertools.product((0.0, 1.0), repeat=2)}
    assert float(bilevel.hypergradient(problem, vector(0.0))) in corners
    method = LinearSolve(smoothing=Perturbed(radius=1e-3))
    draws = [float(bilevel.hypergradient(problem, vector(0.0), method=method, seed=s)) for s in range(100)]
    assert set(draws) == corners == {0.0, 1.0, 2.0}


def test_with_full_rank_the_inclusion_holds():
    """Erratum 11: g = |y - x|^2/2 and f = y_1 - y_2 on y >= 0: Clarke's gradient at 0 is [0, 1] x [-1, 0]."""
    generator = torch.Generator().manual_seed(0)
    eye = torch.eye(2, dtype=DOUBLE)
    for diagonal in torch.rand(200, 2, generator=generator, dtype=DOUBLE):
        h = h_of(
            torch.diag(diagonal),
            G=eye,
            cross=-eye,
            upper_x=vector(0.0, 0.0),
            upper_y=vector(1.0, -1.0),
            eta=0.5,
        )
        assert 0 <= float(h[0]) <= 1
        assert -1 <= float(h[1]) <= 0


HULL = {
    "G": torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=DOUBLE), "cross": torch.eye(2, dtype=DOUBLE),
    "upper_x": vector(0.5, -0.3), "upper_y": vector(1.0, 0.2), "eta": 0.5,
}  # fmt: skip


def test_the_hull_of_the_set_contains_a_false_zero():
    """Erratum 11: over H = diag(a, b) in [0, 1]^2 min |h(H)| is 0.078, but 0 is in the hull of the values."""

    grid = torch.linspace(0, 1, 41, dtype=DOUBLE)
    pairs = torch.cartesian_prod(grid, grid)
    values = torch.stack([h_of(torch.diag(pair), **HULL) for pair in pairs])
    nearest = pairs[int(values.norm(dim=1).argmin())]
    found = minimize(
        lambda pair: float(h_of(torch.diag(vector(*pair)), **HULL).norm()),
        nearest.numpy(),
        bounds=[(0, 1), (0, 1)],
        method="Nelder-Mead",
    )
    stated(11, "0.078", found.fun, rel=0.01)

    equations = np.vstack([values.T.numpy(), np.ones(len(values))])
    weights = linprog(np.zeros(len(values)), A_eq=equations, b_eq=[0, 0, 1], bounds=(0, None))
    assert weights.success
    assert float(np.linalg.norm(values.T.numpy() @ weights.x)) < 1e-7


def test_linear_solves_at_that_kink_are_elements_of_the_set():
    """Erratum 11: each draw combines one Jacobian; none is near zero although their averages can be."""
    problem = Problem(
        upper=lambda x, y: HULL["upper_y"] @ y + HULL["upper_x"] @ x,
        lower=lambda x, y: y @ HULL["G"] @ y / 2 + x @ y,
        constraint=sets.NonNegative(),
        y0=vector(0.0, 0.0),
    )
    corners = [h_of(torch.diag(vector(*d)), **HULL) for d in itertools.product((0.0, 1.0), repeat=2)]
    method = LinearSolve(eta=0.5, smoothing=Perturbed(radius=1e-3))
    zero = vector(0.0, 0.0)
    for seed in range(40):
        h = bilevel.hypergradient(problem, zero, zero, method=method, seed=seed)
        assert min(float((h - corner).norm()) for corner in corners) < 1e-12
        assert float(h.norm()) > 0.078


# 12. Sums and means over rows.


@pytest.mark.parametrize(("reduction", "diverges"), [(torch.mean, False), (torch.sum, True)])
def test_the_series_diverges_with_sums_over_rows(reduction, diverges):
    """Erratum 12: on 160 rows the paper's eta = 0.5 is beyond 2/L with the printed sum, not with the mean."""
    problem, x = digits(reduction)
    y = bilevel.solve_lower(problem, x, tol=1e-8).y
    contraction = Neumann(eta=0.5).contraction(problem.linearize(x, y), RandomStreams())
    stated(12, "3.01" if diverges else "-0.974", contraction, rel=0.01)
    solver = DMLCBO(upper_step=0.1, hypergradient=Neumann(terms=3, eta=0.5))
    solution = bilevel.minimize(problem, x, y, solver=solver, steps=4, evaluate_every=2)
    assert solution.status is (Status.SERIES_DIVERGES if diverges else Status.STEPS)
    assert bool(solution.stats["series_diverged"]) is diverges
    truth = bilevel.hypergradient(problem, x, y)
    error = relative_error(full_sum(problem, x, y, 0.5, 300), truth)
    assert error > 1e50 if diverges else error < 1e-3


# The page.


def test_the_page_has_a_section_for_each_item_and_names_tests_that_exist():
    """Twelve sections, each naming at least one test of these two files."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_errata*.py"))
    exist = set(re.findall(r"^def (test_\w+)", source, flags=re.MULTILINE))
    for item in range(1, 13):
        named = set(re.findall(r"`(test_\w+)`", page_section(item)))
        assert named, f"section {item} names no test"
        assert named <= exist, f"section {item}: {sorted(named - exist)} do not exist"
