"""Bilevel problems with a divided lower variable: the iterates of one process."""

import pytest
import torch
from tests.distributed.ranks import on_ranks
from tests.distributed.threads import on_threads

import bilevel
from bilevel import sets
from bilevel.distributed import Ranks, RanksFailed, ShardedLowerProblem, minimize, sharded, sum_over_ranks
from bilevel.distributed.vector_space import BLOCK, DividedSpace
from bilevel.errors import Incompatible, InvalidInput
from bilevel.smoothing import Perturbed, TwoPoint
from bilevel.spaces import Space

pytestmark = pytest.mark.slow  # each starts several processes

N, D = 12, 4
PARTS = {1: [slice(0, 12)], 2: [slice(0, 5), slice(5, 12)], 3: [slice(0, 1), slice(1, 8), slice(8, 12)]}
SOLVERS = {
    "DMLCBO": bilevel.DMLCBO(),
    "DMLCBO with draws": bilevel.DMLCBO(hypergradient=bilevel.Neumann(terms=4, smoothing=Perturbed(radius=1e-3))),
    "DMLCBO as published": bilevel.DMLCBO(
        lower_step=0.1, hypergradient=bilevel.Neumann(eta=0.2, smoothing=TwoPoint(radius=1e-3, directions=5))
    ),
    "ProjectedSOBA": bilevel.ProjectedSOBA(),
    "Approx": bilevel.Approx(upper_step=0.2, step_rule="fixed"),
}
SETS = {"l1": sets.L1Ball(1.5), "simplex": sets.Simplex(1.0), "l2": sets.L2Ball(0.8), "box": sets.Box(-0.2, 0.4)}


def data():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(N, D, generator=generator, dtype=torch.float64)
    B = torch.randn(6, N, generator=generator, dtype=torch.float64) / 3
    target = torch.randn(N, generator=generator, dtype=torch.float64)
    return A, B, target


def plain_problem(name, kind):
    A, B, target = data()
    Y = SETS[name]
    upper = lambda x, y: (y - target).square().sum() / 2 + 0.01 * x.square().sum()  # noqa: E731
    lower = lambda x, y: (y - A @ x).square().sum() / 2  # noqa: E731
    if kind == "columns":
        lower = lambda x, y: (B @ y - B @ (A @ x)).square().sum() / 2 + 0.1 * (y - A @ x).square().sum()  # noqa: E731
    if kind == "moving":
        return bilevel.Problem(upper, lower, lambda x: sets.L1Ball(1.5 + x.square().sum().sqrt()), y0=Y.project(target))
    return bilevel.Problem(upper, lower, Y, y0=Y.project(target))


def divided_problem(ranks, name, kind):
    A, B, target = data()
    here, Y = PARTS[ranks.size][ranks.rank], SETS[name]
    y0, A, B, target = Y.project(target)[here], A[here], B[:, here], target[here]
    upper = lambda x, y: (y - target).square().sum() / 2 + 0.01 / ranks.size * x.square().sum()  # noqa: E731
    lower = lambda x, y: (y - A @ x).square().sum() / 2  # noqa: E731
    if kind == "columns":  # B y needs all of y: a sum over ranks, of which each counts its share

        def lower(x, y):
            residual = sum_over_ranks(B @ (y - A @ x), ranks)
            return residual.square().sum() / 2 / ranks.size + 0.1 * (y - A @ x).square().sum()

    if kind == "moving":
        Y = lambda x: sets.L1Ball(1.5 + x.square().sum().sqrt())  # noqa: E731
    return ShardedLowerProblem(upper, lower, Y, y0=y0, ranks=ranks)


def run(ranks, cases):
    """How far, relative to its size, each of the runs is from that of one process."""
    apart = {}
    for name, kind, solver in cases:
        x0 = torch.full((D,), 0.1, dtype=torch.float64)
        steps = 50 if "published" in solver else 200  # quotients of differences magnify rounding
        expected = bilevel.minimize(plain_problem(name, kind), x0, solver=SOLVERS[solver], steps=steps)
        found = minimize(divided_problem(ranks, name, kind), x0, solver=SOLVERS[solver], steps=steps)
        here = PARTS[ranks.size][ranks.rank]
        away = float((found.x - expected.x).norm() / expected.x.norm()) + float(
            (found.y - expected.y[here]).norm() / expected.y.norm()
        )
        ends = [abs(a.upper - b.upper) / abs(b.upper) for a, b in zip(found.history, expected.history, strict=True)]
        apart[f"{name}, {kind}, {solver}"] = away + max(ends)
    return apart


CASES = [
    ("l1", "rows", "DMLCBO"), ("l1", "columns", "ProjectedSOBA"),
    ("simplex", "rows", "DMLCBO"), ("l2", "rows", "DMLCBO"), ("box", "rows", "DMLCBO"), ("l1", "rows", "ProjectedSOBA"),
    ("simplex", "columns", "ProjectedSOBA"), ("l1", "columns", "DMLCBO"), ("l1", "rows", "Approx"),
    ("l1", "moving", "DMLCBO"), ("l1", "rows", "DMLCBO with draws"), ("l1", "rows", "DMLCBO as published"),
]  # fmt: skip


@pytest.mark.parametrize("cases", [CASES[:2], pytest.param(CASES[2:], marks=pytest.mark.slow)])
def test_two_processes_take_the_steps_of_one(cases):
    """200 steps to 1e-10: g separable, coupled through all of y, and with a set that moves with x."""
    for apart in on_ranks(run, 2, cases):
        assert {name: away for name, away in apart.items() if not away <= 1e-10} == {}


def test_three_uneven_parts_take_the_steps_of_one():
    for apart in on_ranks(run, 3, [("simplex", "rows", "DMLCBO"), ("l1", "columns", "ProjectedSOBA")]):
        assert {name: away for name, away in apart.items() if not away <= 1e-10} == {}


def solved(ranks):
    """How far y is from a target of the simplex, which an x that is divided like y can bring it to."""
    here = PARTS[2][ranks.rank]
    target = torch.linspace(1, 2, N, dtype=torch.float64)
    Y, y0 = sets.Simplex(float(target.sum())), torch.full_like(target, 1.5)

    def parts(target):
        return lambda x, y: (y - target).square().sum(), lambda x, y: (y - x).square().sum()

    plain = bilevel.minimize(bilevel.Problem(*parts(target), Y), torch.zeros_like(target), y0, steps=300)
    problem = ShardedLowerProblem(*parts(target[here]), Y, y0=y0[here], x_divided=True, ranks=ranks)
    found = minimize(problem, torch.zeros_like(target[here]), steps=300)
    apart = float((found.x - plain.x[here]).abs().max()) + float((found.y - plain.y[here]).abs().max())
    return float((found.y - target[here]).abs().max()), apart


def refused(ranks):
    """What methods that look at single entries say."""
    problem, told = divided_problem(ranks, "box", "rows"), []
    x = torch.full((D,), 0.1, dtype=torch.float64)
    for ask in (
        lambda: bilevel.minimize(problem, x, solver=bilevel.RMDPCD(), steps=1),
        lambda: bilevel.certificate(problem, x, 1e-3),
        lambda: bilevel.check_hypergradient(problem, x),
    ):
        try:
            ask()
        except Incompatible as error:
            told.append(str(error))
    return told


def refused_together(ranks):
    """Starting points that differ, and files for what is divided."""
    problem, told = divided_problem(ranks, "box", "rows"), []
    x = torch.full((D,), 0.1, dtype=torch.float64)
    for start, more in ((x + ranks.rank, {}), (x[: D - ranks.rank], {}), (x, {"checkpoint": "run"})):
        try:
            minimize(problem, start, steps=1, **more)
        except RanksFailed as error:
            told.append(str(error))
    return told


def known_and_refused(ranks):
    return solved(ranks), refused(ranks), refused_together(ranks)


def test_a_known_answer_and_who_refuses_a_divided_variable():
    for (away, apart), told, together in on_ranks(known_and_refused, 2):
        assert len(together) == 3
        assert all(text.endswith("start from the same point on every rank") for text in together[:2])
        assert "for one process" in together[2] or "cannot be stored" in together[2]
        assert away < 1e-3
        assert apart < 1e-10
        assert len(told) == 3
        assert all("they are divided among 2 ranks: use DMLCBO" in text for text in told)


def test_draws_of_all_ranks_are_those_of_one_process():
    def drawn(ranks, n):
        here = slice(0, n // 3) if ranks.rank == 0 else slice(n // 3, n)
        space, a = DividedSpace(1, ranks=ranks), torch.zeros(n, dtype=torch.float64)[here]
        return (
            space.random_like(a, torch.Generator().manual_seed(1)),
            space.ball(a, torch.Generator().manual_seed(2)),
            space.mean_square(a + 1 + ranks.rank),
        )

    for n in (7, 3 * BLOCK + 5):
        parts, plain, a = on_threads(drawn, 2, n), Space(1), torch.zeros(n, dtype=torch.float64)
        expected = plain.random_like(a, torch.Generator().manual_seed(1))
        assert torch.equal(torch.cat([part[0] for part in parts]), expected)
        ball = plain.ball(a, torch.Generator().manual_seed(2))
        torch.testing.assert_close(torch.cat([part[1] for part in parts]), ball, rtol=1e-12, atol=0)
        torch.testing.assert_close(float(parts[0][2]), (n // 3 + 4.0 * (n - n // 3)) / n)


def test_what_a_problem_refuses():
    y0, f, g = torch.ones(3) / 3, lambda x, y: (x * y).sum(), lambda x, y: (y - x).square().sum()
    with pytest.raises(InvalidInput, match="y0 is empty"):
        ShardedLowerProblem(f, g, sets.Simplex(), y0=y0[:0])
    with pytest.raises(InvalidInput, match="a set that moves with x needs all of x"):
        ShardedLowerProblem(f, g, lambda x: sets.L1Ball(x.sum()), y0=y0, x_divided=True)


def test_ranks_with_different_problems_are_told():
    def stated(ranks):
        y0 = torch.ones(3 if ranks.rank == 0 else 0)
        try:
            ShardedLowerProblem(lambda x, y: y.sum(), lambda x, y: y.sum(), sets.L1Ball(), y0=y0, ranks=ranks)
        except RanksFailed as error:
            return str(error)

    for text in on_threads(stated, 2):
        assert "rank 1, looking at its part of the lower variable: y0 is empty" in text


def test_one_rank_is_the_plain_problem():
    name = "l1"
    x0 = torch.full((D,), 0.1, dtype=torch.float64)
    found = bilevel.minimize(divided_problem(Ranks(), name, "rows"), x0, steps=50)
    expected = bilevel.minimize(plain_problem(name, "rows"), x0, steps=50)
    torch.testing.assert_close(found.x, expected.x, rtol=1e-12, atol=1e-14)
    assert isinstance(sharded(SETS[name]).base, sets.L1Ball)
