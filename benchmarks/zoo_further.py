"""Further bilevel problems, of other kinds than those of `zoo_problems`: other sets, sizes and upper levels.

Each maker takes a seed and a dtype and gives a `Case`. The data are those of scikit-learn, or drawn.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from bilevel import Problem, sets

from .zoo_problems import Case


def transport(seed: int, dtype: torch.dtype) -> Case:
    """The costs behind an observed transport plan, as weights of four features."""
    rng = np.random.default_rng(seed)
    supply, demand = rng.dirichlet(np.full(8, 3.0)), rng.dirichlet(np.full(10, 3.0))
    constraint = sets.TransportPolytope(_tensor(supply, dtype), _tensor(demand, dtype))
    features, weights = _tensor(rng.uniform(size=(4, 8, 10)), dtype), _tensor([1.0, 2.0, 0.5, 0.0], dtype)
    noise = _tensor(0.05 * rng.normal(size=(8, 10)), dtype)
    observed = constraint.project(-((weights[:, None, None] * features).sum(0) + noise) / 5.0)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return ((x[:, None, None] * features).sum(0) * y).sum() + 2.5 * y.square().sum()

    problem = Problem(lambda x, y: 100 * (y - observed).square().sum() + 1e-3 * x.square().sum(), lower, constraint)
    return Case(problem, torch.zeros(4, dtype=dtype), _tensor(np.outer(supply, demand), dtype))


def worst_case(seed: int, dtype: torch.dtype) -> Case:
    """A regression that is fitted to the worst weights of its rows, which lie on a capped simplex."""
    rng = np.random.default_rng(seed)
    rows, count = rng.normal(size=(100, 8)), 100
    wanted = rows @ rng.normal(size=8) + 0.5 * rng.standard_t(2, size=100)
    A, b = _tensor(rows, dtype), _tensor(wanted, dtype)

    def losses(x: Tensor) -> Tensor:
        return ((A @ x - b).square() + 1).sqrt() - 1

    problem = Problem(
        lambda x, y: y @ losses(x) + 1e-2 * x.square().sum(),
        lambda x, y: -y @ losses(x) + 5.0 * (y - 1 / count).square().sum(),
        sets.CappedSimplex(total=1.0, cap=0.05),
    )
    return Case(problem, torch.zeros(8, dtype=dtype), torch.full((count,), 1 / count, dtype=dtype))


def isotonic(seed: int, dtype: torch.dtype) -> Case:
    """A weight per observation of a monotone regression, chosen by other observations."""
    rng = np.random.default_rng(seed)
    curve = np.sort(rng.normal(size=60))
    given = curve + 0.5 * rng.normal(size=60) + 3.0 * (rng.random(60) < 0.15)
    b, c = _tensor(given, dtype), _tensor(curve + 0.3 * rng.normal(size=60), dtype)
    problem = Problem(
        lambda x, y: (y - c).square().mean() + 1e-3 * x.square().mean(),
        lambda x, y: (x.exp() * (y - b).square()).mean() + 1e-3 * y.square().mean(),
        sets.MonotoneCone(),
    )
    return Case(problem, torch.zeros(60, dtype=dtype), torch.zeros(60, dtype=dtype))


def tasks(seed: int, dtype: torch.dtype) -> Case:
    """Twelve support vector machines by their duals, with common feature scales and a common box."""
    rng = np.random.default_rng(seed)
    rows = _tensor(rng.normal(size=(12, 50, 5)), dtype)
    directions = _tensor(rng.normal(size=(12, 5)) * np.array([2.0, 1.0, 0.5, 0.0, 0.0]), dtype)
    noise = _tensor(rng.normal(size=(12, 50)), dtype)
    signs = ((rows @ directions[:, :, None])[..., 0] + 0.7 * noise).sign()
    train, given, held, truth = rows[:, :20], signs[:, :20], rows[:, 20:], signs[:, 20:]

    def margin(x: Tensor, at: Tensor, y: Tensor) -> Tensor:
        scaled = train * x[:5].exp()
        return (at * x[:5].exp() @ scaled.mT @ (given * y)[..., None])[..., 0]

    problem = Problem(
        lambda x, y: softplus(-truth * margin(x, held, y)).mean(),
        lambda x, y: ((given * y) * margin(x, train, y)).sum() / 2 - y.sum() + 0.05 * y.square().sum(),
        lambda x: sets.Box(0.0, x[5].exp()),
    )
    return Case(problem, torch.zeros(6, dtype=dtype), torch.zeros(12, 20, dtype=dtype))


def friction(seed: int, dtype: torch.dtype) -> Case:
    """Loads that lead to wanted contact forces, which lie in second-order cones."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(30, 30)) / np.sqrt(30)
    A, B = _tensor(mixing @ mixing.T + 0.05 * np.eye(30), dtype), _tensor(rng.normal(size=(30, 6)), dtype)
    wanted = sets.SecondOrderCone().project(_tensor(rng.normal(size=(10, 3)) + np.array([0.7, 0, 0]), dtype))
    problem = Problem(
        lambda x, y: (y - wanted).square().mean() + 1e-3 * x.square().sum(),
        lambda x, y: y.reshape(-1) @ A @ y.reshape(-1) / 2 - (B @ x) @ y.reshape(-1),
        sets.SecondOrderCone(),
    )
    return Case(problem, torch.zeros(6, dtype=dtype), torch.zeros(10, 3, dtype=dtype))


def clean_digits(seed: int, dtype: torch.dtype) -> Case:
    """A weight per row of pictures with wrong labels, ten classes in l1 balls."""
    rng = np.random.default_rng(seed)
    data, labels = load_digits(return_X_y=True)
    data = data - data.mean(0)
    data = data @ np.linalg.svd(data, full_matrices=False)[2][:20].T
    order = rng.permutation(len(labels))[:400]
    rows, labels = np.c_[data[order] / data.std(), np.ones(400)], labels[order]
    given = labels[:150].copy()
    given[rng.random(150) < 0.4] = rng.integers(10)
    A, V = _tensor(rows[:150], dtype), _tensor(rows[150:], dtype)
    wanted, truth = torch.as_tensor(given), torch.as_tensor(labels[150:])
    problem = Problem(
        lambda x, y: cross_entropy(V @ y.T, truth),
        lambda x, y: (x.sigmoid() * cross_entropy(A @ y.T, wanted, reduction="none")).mean() + 1e-3 * y.square().sum(),
        sets.L1Ball(3.0),
    )
    return Case(problem, torch.zeros(150, dtype=dtype), torch.zeros(10, 21, dtype=dtype))


def batches(seed: int, dtype: torch.dtype) -> Case:
    """A weight per group of rows, four classes in an l2 ball, with batches of rows."""
    rng = np.random.default_rng(seed)
    centers, labels, groups = rng.normal(size=(4, 10)), rng.integers(4, size=600), rng.integers(12, size=300)
    rows = centers[labels] + 1.5 * rng.normal(size=(600, 10))
    given = labels[:300].copy()
    given[(groups % 3 == 0) & (rng.random(300) < 0.7)] = 0
    A, V = _tensor(rows[:300], dtype), _tensor(rows[300:], dtype)
    wanted, truth, group = (torch.as_tensor(v) for v in (given, labels[300:], groups))

    def lower(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor] | None = None) -> Tensor:
        rows = slice(None) if batch is None else batch[0]
        losses = cross_entropy(A[rows] @ y, wanted[rows], reduction="none")
        return (x[group[rows]].sigmoid() * losses).mean() + 1e-3 * y.square().sum()

    def upper(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor] | None = None) -> Tensor:
        rows = slice(None) if batch is None else batch[1]
        return cross_entropy(V[rows] @ y, truth[rows]) + 1e-4 * x.square().sum()

    def sampler(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randint(300, (32,), generator=generator), torch.randint(300, (32,), generator=generator)

    problem = Problem(upper, lower, sets.L2Ball(2.0), sampler=sampler)
    return Case(problem, torch.zeros(12, dtype=dtype), torch.zeros(10, 4, dtype=dtype))


def total_variation(seed: int, dtype: torch.dtype) -> Case:
    """The strength of total-variation denoising in five parts of a signal, by its dual: an ill-conditioned box."""
    rng = np.random.default_rng(seed)
    clean = np.repeat(rng.normal(size=20), 10) + np.r_[np.zeros(100), np.sin(np.arange(100) / 8)]
    b = _tensor(clean + 0.3 * rng.normal(size=200), dtype)
    truth, part = _tensor(clean, dtype), torch.arange(199) // 40

    def signal(y: Tensor) -> Tensor:
        zero = y.new_zeros(1)
        return b + torch.cat([y, zero]) - torch.cat([zero, y])

    problem = Problem(
        lambda x, y: (signal(y) - truth).square().mean(),
        lambda x, y: signal(y).square().sum() / 2 + 1e-6 * y.square().sum(),
        lambda x: sets.Box(-x.exp()[part], x.exp()[part]),
    )
    return Case(problem, torch.full((5,), -2.0, dtype=dtype), torch.zeros(199, dtype=dtype))


def tolls(seed: int, dtype: torch.dtype) -> Case:
    """Tolls in [0, 3] on 15 links that lower the total time of drivers, each pair of places with six paths."""
    rng = np.random.default_rng(seed)
    uses = _tensor((rng.random(size=(12, 6, 15)) < 0.25) + 0.0, dtype)
    free, slope = _tensor(rng.uniform(0.5, 2, size=15), dtype), _tensor(rng.uniform(0.02, 0.6, size=15), dtype)
    size = _tensor(rng.uniform(0.5, 1.5, size=12), dtype)

    def flow(y: Tensor) -> Tensor:
        return torch.einsum("p,pk,pkl->l", size, y, uses)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        v = flow(y)
        return (free + x) @ v + (slope * v.square()).sum() / 2 + 1e-2 * y.square().sum()

    problem = Problem(
        lambda x, y: (flow(y) * (free + slope * flow(y))).sum() + 0.02 * x @ flow(y),
        lower,
        sets.Simplex(1.0),
        upper_constraint=sets.Box(0.0, 3.0),
    )
    return Case(problem, torch.full((15,), 0.5, dtype=dtype), torch.full((12, 6), 1 / 6, dtype=dtype), (0.0, 3.0))


def low_rank(seed: int, dtype: torch.dtype) -> Case:
    """A weight per row and the radius of a nuclear-norm ball, for the other entries of a matrix of rank two."""
    rng = np.random.default_rng(seed)
    whole = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 10))
    spread = np.where(np.arange(12) % 4 == 0, 2.0, 0.2)[:, None]
    known, held = rng.random((12, 10)) < 0.5, rng.random((12, 10)) < 0.5
    b, c = _tensor(whole + spread * rng.normal(size=(12, 10)), dtype), _tensor(whole, dtype)
    inner, outer = _tensor(known + 0.0, dtype), _tensor((held & ~known) + 0.0, dtype)
    problem = Problem(
        lambda x, y: (outer * (y - c).square()).sum() / outer.sum(),
        lambda x, y: (x[1:].exp()[:, None] * inner * (y - b).square()).mean() + 1e-3 * y.square().mean(),
        lambda x: sets.NuclearNormBall(x[0].exp()),
    )
    return Case(problem, torch.ones(13, dtype=dtype), torch.zeros(12, 10, dtype=dtype))


def groups(seed: int, dtype: torch.dtype) -> Case:
    """Radius, ridge and feature scales of a regression with a group-sparse ball."""
    rng = np.random.default_rng(seed)
    correlated = rng.normal(size=(180, 60)) + 2.0 * np.repeat(rng.normal(size=(180, 15)), 4, 1)
    weights = np.repeat(rng.random(15) < 0.3, 4) * rng.normal(size=60)
    wanted = correlated @ weights + 3.0 * rng.normal(size=180)
    A, b, V, c = (_tensor(v, dtype) for v in (correlated[:60], wanted[:60], correlated[60:], wanted[60:]))

    def scaled(x: Tensor, y: Tensor) -> Tensor:
        return x[2:].exp().repeat_interleave(4) * y

    problem = Problem(
        lambda x, y: (V @ scaled(x, y) - c).square().mean(),
        lambda x, y: (A @ scaled(x, y) - b).square().mean() / 2 + x[1].exp() * y.square().sum(),
        lambda x: sets.GroupL1Ball(4, x[0].exp()),
    )
    return Case(problem, torch.zeros(17, dtype=dtype), torch.zeros(60, dtype=dtype))


def shops(seed: int, dtype: torch.dtype) -> Case:
    """Places of three shops that win customers from three others: many local minima."""
    rng = np.random.default_rng(seed)
    people, others = _tensor(rng.normal(size=(40, 2)), dtype), _tensor(0.7 * rng.normal(size=(3, 2)), dtype)
    weights = _tensor(rng.uniform(0.5, 1.5, size=40) / 40, dtype)

    def distances(x: Tensor) -> Tensor:
        places = torch.cat([x.reshape(3, 2), others])
        return ((people[:, None] - places[None]).square().sum(-1) + 0.1).sqrt()

    problem = Problem(
        lambda x, y: -(weights @ y[:, :3].sum(-1)) + 1e-3 * x.square().sum(),
        lambda x, y: (distances(x) * y).sum() + 0.2 * y.square().sum(),
        sets.Simplex(1.0),
    )
    return Case(problem, _tensor([2.0, 0.0, -1.0, 1.7, -1.0, -1.7], dtype), torch.full((40, 6), 1 / 6, dtype=dtype))


def stiff_simplex(seed: int, dtype: torch.dtype) -> Case:
    """Mixtures of assets whose covariance has condition number 1e6."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(25, 25)))[0]
    S = _tensor(basis @ np.diag(np.logspace(0, -6, 25)) @ basis.T, dtype)
    target = _tensor(rng.dirichlet(np.full(25, 0.3)), dtype)
    pull = _tensor(rng.normal(size=(25, 5)) * 0.01, dtype)
    problem = Problem(
        lambda x, y: (y - target).square().sum() + 1e-4 * x.square().sum(),
        lambda x, y: y @ S @ y / 2 - (pull @ x) @ y,
        sets.Simplex(1.0),
    )
    return Case(problem, torch.zeros(5, dtype=dtype), torch.full((25,), 0.04, dtype=dtype))


def parts(seed: int, dtype: torch.dtype) -> Case:
    """Dictionaries on both levels: weights in an l2 ball, offsets in a box, scales that are learned."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(200, 12)) * np.logspace(1, -1, 12)
    wanted = np.tanh(rows @ rng.normal(size=12) / 3) + 0.3 + 0.2 * rng.normal(size=200)
    A, b, V, c = (_tensor(v, dtype) for v in (rows[:60], wanted[:60], rows[60:], wanted[60:]))
    problem = Problem(
        lambda x, y: (V * x["scale"].exp() @ y["weights"] + y["offset"] - c).square().mean(),
        lambda x, y: (
            (A * x["scale"].exp() @ y["weights"] + y["offset"] - b).square().mean()
            + x["ridge"].exp().sum() * y["weights"].square().sum()
            + 1e-3 * y["offset"].square().sum()
        ),
        sets.ProductSet({"weights": sets.L2Ball(0.5), "offset": sets.Box(-0.2, 0.2)}),
    )
    x0 = {"scale": torch.zeros(12, dtype=dtype), "ridge": torch.zeros(1, dtype=dtype)}
    return Case(problem, x0, {"weights": torch.zeros(12, dtype=dtype), "offset": torch.zeros(1, dtype=dtype)})


def wide(seed: int, dtype: torch.dtype) -> Case:
    """A penalty per group of 100 of 2,000 features, weights in an l1 ball."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(300, 2000))
    weights = np.zeros(2000)
    weights[rng.choice(500, 15, replace=False)] = rng.normal(size=15)
    wanted = rows @ weights + rng.normal(size=300)
    A, b, V, c = (_tensor(v, dtype) for v in (rows[:150], wanted[:150], rows[150:], wanted[150:]))
    problem = Problem(
        lambda x, y: (V @ y - c).square().mean() / 2,
        lambda x, y: (A @ y - b).square().mean() / 2 + (x.exp().repeat_interleave(100) * y.square()).sum() / 2,
        sets.L1Ball(8.0),
    )
    return Case(problem, torch.full((20,), -3.0, dtype=dtype), torch.zeros(2000, dtype=dtype))


def scalar(seed: int, dtype: torch.dtype) -> Case:
    """One y in [0, 1] and an upper level with many waves."""
    rng = np.random.default_rng(seed)
    phase = _tensor(rng.uniform(0, 6, size=3), dtype)
    problem = Problem(
        lambda x, y: (y - 0.7).square().sum() + 0.1 * (3 * x + phase).sin().sum() + 0.02 * x.square().sum(),
        lambda x, y: (y - x.sum()).square().sum() + 0.3 * y.sum() * x[0],
        sets.Box(0.0, 1.0),
    )
    return Case(problem, torch.full((3,), -1.0, dtype=dtype), torch.zeros(1, dtype=dtype))


def polyhedron(seed: int, dtype: torch.dtype) -> Case:
    """A plan under twelve limits and bounds, its prices set above: an upper level that is bilinear."""
    rng = np.random.default_rng(seed)
    limits, most = _tensor(rng.uniform(size=(12, 10)), dtype), _tensor(rng.uniform(1.5, 3.0, size=12), dtype)
    eye = torch.eye(10, dtype=dtype)
    matrix, right = torch.cat([limits, -eye]), torch.cat([most, torch.zeros(10, dtype=dtype)])
    value, cost = _tensor(rng.uniform(1, 3, size=10), dtype), _tensor(rng.uniform(0.3, 1.0, size=10), dtype)
    problem = Problem(
        lambda x, y: -((x - cost) * y).sum(),
        lambda x, y: ((x - value) * y).sum() + 0.3 * y.square().sum(),
        sets.Polyhedron(matrix, right),
        upper_constraint=sets.Box(0.0, 5.0),
    )
    return Case(problem, torch.ones(10, dtype=dtype), torch.zeros(10, dtype=dtype), (0.0, 5.0))


FURTHER = {
    make.__name__: make
    for make in (
        transport, worst_case, isotonic, tasks, friction, clean_digits, batches, total_variation, tolls, low_rank,
        groups, shops, stiff_simplex, parts, wide, scalar, polyhedron,
    )
}  # fmt: skip


def _tensor(values: object, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=dtype)
