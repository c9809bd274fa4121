"""Sets whose parameters are float32, at float32 points: what is rounded in the parameters is not held against them."""

import pytest
import torch

from bilevel import sets

GENERATOR = torch.Generator().manual_seed(0)
COUNT = 1000


def draw(*shape):
    return torch.rand(*shape, generator=GENERATOR) + 0.1


def shares(count):
    """Positive, with a sum of 1 up to rounding."""
    values = draw(count)
    return values / values.sum()


VECTORS = [
    sets.Box(-draw(8), draw(8)),
    sets.L1Ball(draw(())),
    sets.L2Ball(draw(())),
    sets.LInfBall(draw(())),
    sets.GroupL1Ball(2, draw(())),
    sets.ElasticNetBall(draw(())),
    sets.Simplex(draw(())),
    sets.CappedSimplex(0.3),
    sets.Hyperplane(draw(8), draw(())),
    sets.HalfSpace(draw(8), draw(())),
    sets.AffineSet(draw(3, 8), draw(3)),
    sets.Polyhedron(draw(3, 8), draw(3)),
    sets.Permutahedron(draw(8)),
    sets.SecondOrderCone(),
    sets.MonotoneCone(),
    sets.FreeSpace(),
    sets.NonNegative(),
    sets.WeightedL1Ball(draw(8), draw(())),
    sets.BoxSection(-draw(8), draw(8), draw(8), 0.1 * draw(())),
    sets.Intersection(sets.L1Ball(draw(())), sets.Box(-draw(8), draw(8))),
    sets.ProductSet([sets.Simplex(draw(())), sets.L2Ball(draw(()))], sizes=[5, 3]),
    sets.Translated(sets.Simplex(draw(())), draw(8)),
    sets.Scaled(sets.L1Ball(draw(())), draw(())),
    sets.from_projection(torch.relu),
]
MATRICES = [
    sets.PSDCone(),
    sets.NuclearNormBall(draw(())),
    sets.SpectralNormBall(draw(())),
    sets.BirkhoffPolytope(5),
    sets.TransportPolytope(shares(5), shares(5)),
    sets.Flattened(sets.L1Ball(draw(())), 2),
]
PENALTIES = [
    sets.L1Penalty(draw(())),
    sets.ElasticNetPenalty(draw(8), draw(())),
    sets.GroupL1Penalty(torch.arange(8) // 2, draw(())),
    sets.Indicator(sets.Simplex(draw(()))),
]
ELSEWHERE = {"ConvexSet", "Membership", "Proximal", "ProjectionJacobian", "from_projection", "from_cvxpy"}
"""What is no set, and sets made by functions: from_projection is above, and a program of cvxpy is solved in float64."""


@pytest.mark.parametrize(
    ("Y", "shape"),
    [(Y, (8,)) for Y in VECTORS] + [(Y, (5, 5)) for Y in MATRICES],
    ids=[type(Y).__name__ for Y in VECTORS + MATRICES],
)
def test_random_points_are_projected(Y, shape):
    generator = torch.Generator().manual_seed(1)
    scale = 10 ** (4 * torch.rand(COUNT, *[1] * len(shape), generator=generator) - 2)
    z = scale * torch.randn(COUNT, *shape, generator=generator)
    y, v = Y.project(z), torch.randn(COUNT, *shape, generator=generator)
    assert y.dtype == torch.float32
    assert bool(Y.contains(y))
    assert bool(torch.isfinite(Y.jacobian(z).apply(v)).all())


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: type(penalty).__name__)
def test_proximal_maps_of_random_points(penalty):
    generator = torch.Generator().manual_seed(1)
    z, v = (torch.randn(COUNT, 8, generator=generator) for _ in range(2))
    y = penalty.prox(z, 0.5)
    assert y.dtype == torch.float32
    assert float((y - penalty.prox(z.double(), 0.5)).abs().max()) < 1e-5
    assert bool(torch.isfinite(penalty.jacobian(z, 0.5).apply(v)).all())


def test_every_set_is_here():
    here = {type(Y).__name__ for Y in (*VECTORS, *MATRICES, *PENALTIES)}
    classes = {name for name, value in vars(sets).items() if isinstance(value, type)}
    assert classes - ELSEWHERE <= here
