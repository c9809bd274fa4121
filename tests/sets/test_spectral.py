"""The PSD cone and the balls of the spectral and nuclear norms."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError, InvalidInputError
from bilevel.sets import NuclearNormBall, PSDCone, SpectralNormBall
from bilevel.sets.spectral import divided_differences
from bilevel.testing import SetTestCase


def positive(generator):
    return torch.rand((), generator=generator, dtype=torch.float64) + 0.2


class TestPSDCone(SetTestCase):
    oracle_cases = 30  # 2,000 among the slow tests
    dimensions = (1, 2, 3, 5, 8, 12)
    margin_exact = False  # it is, but random directions in nine dimensions miss the nearest kink

    def shape(self, dimension):
        return (dimension, dimension)

    def make_set(self, generator, dimension, scale):
        return PSDCone()

    def oracle(self, y, Y):
        return [y >> 0, y == y.T]


class SingularValueCase(SetTestCase):
    oracle_cases = 30  # 2,000 among the slow tests
    dimensions = (1, 2, 3, 5, 8, 12)

    def shape(self, dimension):
        return {5: (5, 2), 8: (8, 12), 12: (12, 12)}.get(dimension, (dimension, 2))


class TestSpectralNormBall(SingularValueCase):
    def make_set(self, generator, dimension, scale):
        return SpectralNormBall(positive(generator) * scale)

    def oracle(self, y, Y):
        return [cvxpy.sigma_max(y) <= Y.radius.item()]


class TestNuclearNormBall(SingularValueCase):
    def make_set(self, generator, dimension, scale):
        return NuclearNormBall(positive(generator) * scale)

    def oracle(self, y, Y):
        return [cvxpy.normNuc(y) <= Y.radius.item()]


def test_repeated_values_keep_exact_derivatives():
    """eigh and svd have no derivative at repeated values; the projections have two."""
    z = torch.diag(torch.tensor([2.0, 2.0, -1.0, -1.0, -1.0], dtype=torch.float64)).requires_grad_()
    for Y in (PSDCone(), NuclearNormBall(3.0), SpectralNormBall(1.5)):
        assert torch.autograd.gradcheck(Y.project, (z,))
        assert torch.autograd.gradgradcheck(Y.project, (z,))


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-8, 1e-4])
def test_nearly_repeated_values_keep_exact_derivatives(spread):
    """In a rotated basis, with values 2, 2 + spread, -1, -1 - spread: nothing is divided by the spread."""
    Q = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    values = torch.tensor([2.0 + spread, 2.0, -1.0, -1.0 - spread, -1.0], dtype=torch.float64)
    z = (Q @ values.diag() @ Q.T).requires_grad_()
    for Y in (PSDCone(), NuclearNormBall(3.0), SpectralNormBall(1.5)):
        assert torch.autograd.gradcheck(Y.project, (z,))
        assert torch.autograd.gradgradcheck(Y.project, (z,))
    v = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    repeated = Q @ torch.tensor([2.0, 2.0, -1.0, -1.0, -1.0], dtype=torch.float64).diag() @ Q.T
    for Y in (PSDCone(), NuclearNormBall(3.0), SpectralNormBall(1.5)):
        near, there = Y.jacobian(z).apply(v), Y.jacobian(repeated).apply(v)
        torch.testing.assert_close(near, there, rtol=0, atol=10 * spread + 1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_that_of_float32_rounded_once(dtype):
    z, v = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    for Y in (PSDCone(), NuclearNormBall(torch.tensor(1.0)), SpectralNormBall(torch.tensor(1.0))):
        torch.testing.assert_close(Y.project(z), Y.project(z.float()).to(dtype), rtol=0, atol=0)
        half, wide = Y.jacobian(z), Y.jacobian(z.float())
        torch.testing.assert_close(half.apply(v), wide.apply(v.float()).to(dtype), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_mode():
    z, v = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for Y in (PSDCone(), NuclearNormBall(1.0), SpectralNormBall(1.0)):
        torch.testing.assert_close(torch.func.jvp(Y.project, (z,), (v,))[1], Y.jacobian(z).apply(v))


def test_diagonal_matrices_are_vectors():
    """On diagonal matrices the three sets are the orthant, the box and the l1 ball."""
    z = torch.tensor([2.0, -1.5, 0.25], dtype=torch.float64)
    assert PSDCone().project(z.diag()).allclose(z.clamp_min(0).diag())
    assert SpectralNormBall(1.0).project(z.diag()).allclose(z.clamp(-1, 1).diag())
    expected = torch.tensor([0.75, -0.25, 0.0], dtype=torch.float64)
    assert NuclearNormBall(1.0).project(z.diag()).allclose(expected.diag())


def test_divided_differences_have_no_0_over_0():
    gain = divided_differences(torch.tensor([1.0, 1.0, 0.0, 0.0, -1.0]))
    assert torch.isfinite(gain).all()
    assert gain[0].tolist() == [1.0, 1.0, 1.0, 1.0, 0.5]


def slopes(kind, radius, z, u, h=1e-6):
    """(dP/dradius)' u for each matrix, by central differences."""
    ends = [kind(radius.detach() + step).project(z) for step in (h, -h)]
    return ((ends[0] - ends[1]) * u).sum((-2, -1)) / (2 * h)


def test_one_radius_per_matrix():
    z = torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    radius = torch.tensor([0.5, 1.0, 50.0], dtype=torch.float64, requires_grad=True)
    u = torch.randn_like(z)
    for kind in (NuclearNormBall, SpectralNormBall):
        Y = kind(radius)
        assert Y.contains(Y.project(z))
        torch.testing.assert_close(Y.project(z)[0], kind(0.5).project(z[0]))
        (by_autograd,) = torch.autograd.grad(Y.project(z), radius, u)
        torch.testing.assert_close(by_autograd, slopes(kind, radius, z, u), rtol=1e-6, atol=1e-6)
    assert torch.equal(NuclearNormBall(0.0).project(z), torch.zeros_like(z))


def test_errors_carry_the_numbers():
    with pytest.raises(EmptySetError, match="radius must be at least 0, got -1"):
        NuclearNormBall(-1.0)
    with pytest.raises(InvalidInputError, match=r"square matrices, got shape \(2, 3\)"):
        PSDCone().project(torch.zeros(2, 3))
    with pytest.raises(InvalidInputError, match=r"2 dimension\(s\), got shape \(3,\)"):
        SpectralNormBall().project(torch.zeros(3))
    reason = SpectralNormBall(1.0).contains(torch.eye(2) * 3).reason
    assert reason == "the spectral norm exceeds the radius 1 (by 2)"


@pytest.mark.parametrize("kind", [NuclearNormBall, SpectralNormBall])
def test_several_radii_for_one_matrix(kind):
    z = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    radius = torch.tensor([0.5, 1.0, 50.0], dtype=torch.float64, requires_grad=True)
    looped = torch.stack([kind(r).project(z) for r in radius.tolist()])
    torch.testing.assert_close(kind(radius).project(z), looped)
    torch.testing.assert_close(kind(radius).project(z.clone().requires_grad_()), looped)
    u = torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (by_autograd,) = torch.autograd.grad(kind(radius).project(z), radius, u)
    torch.testing.assert_close(by_autograd, slopes(kind, radius, z, u), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [NuclearNormBall, SpectralNormBall])
def test_vmap_over_matrices_and_radii(kind):
    z, v = torch.randn(2, 3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    radius = torch.tensor([0.0, 1.0, 50.0], dtype=torch.float64)
    batched = torch.func.vmap(lambda z, r: kind(r).project(z))(z, radius)
    torch.testing.assert_close(batched, kind(radius).project(z))
    products = torch.func.vmap(lambda z, r, v: kind(r).jacobian(z).apply(v))(z, radius, v)
    torch.testing.assert_close(products, kind(radius).jacobian(z).apply(v))


@pytest.mark.parametrize("kind", [NuclearNormBall, SpectralNormBall])
def test_derivatives_at_far_points(kind):
    """H from autograd and in closed form at |z| = 1e12 of the radius."""
    z, v = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    leaf = (1e12 * z).requires_grad_()
    (by_autograd,) = torch.autograd.grad(kind(1.0).project(leaf), leaf, v)
    torch.testing.assert_close(by_autograd, kind(1.0).jacobian(leaf).apply(v), rtol=0, atol=1e-14)
