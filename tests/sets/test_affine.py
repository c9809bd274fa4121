"""Half-spaces, hyperplanes and affine sets."""

from __future__ import annotations

import pytest
import torch

from bilevel.errors import EmptySetError, InvalidInputError
from bilevel.sets import AffineSet, HalfSpace, Hyperplane
from bilevel.testing import SetTestCase


def normal_draw(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class TestHalfSpace(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return HalfSpace(normal_draw(generator, dimension), normal_draw(generator) * scale)

    def oracle(self, y, Y):
        return [Y.normal.numpy() @ y <= Y.offset.item()]


class TestHyperplane(SetTestCase):
    def make_set(self, generator, dimension, scale):
        return Hyperplane(normal_draw(generator, dimension), normal_draw(generator) * scale)

    def oracle(self, y, Y):
        return [Y.normal.numpy() @ y == Y.offset.item()]


class TestAffineSet(SetTestCase):
    small_dimensions = (2, 3, 4)

    def make_set(self, generator, dimension, scale):
        matrix = normal_draw(generator, (dimension + 1) // 2, dimension)
        return AffineSet(matrix, normal_draw(generator, len(matrix)) * scale)

    def oracle(self, y, Y):
        return [Y.matrix.numpy() @ y == Y.offset.numpy()]


def test_dependent_rows_are_fine_when_consistent():
    matrix = torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    Y = AffineSet(matrix, torch.tensor([1.0, 2.0], dtype=torch.float64))
    y = Y.project(torch.tensor([3.0, 1.0, 5.0], dtype=torch.float64))
    torch.testing.assert_close(y, torch.tensor([1.5, -0.5, 5.0], dtype=torch.float64))
    assert Y.jacobian(y).dimension == 2


def test_contradicting_rows_are_refused():
    with pytest.raises(EmptySetError, match=r"no solution: the best y leaves a gap of .* \(rank 1, 2 equations\)"):
        AffineSet(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([1.0, 3.0]))


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidInputError, match="normal is zero"):
        HalfSpace(torch.zeros(3))
    with pytest.raises(InvalidInputError, match=r"shape \(m, n\)"):
        AffineSet(torch.ones(3))
    with pytest.raises(InvalidInputError, match="offset must have 1 entries"):
        AffineSet(torch.ones(1, 2), torch.ones(2))
    with pytest.raises(InvalidInputError, match="offset must be finite"):
        HalfSpace(torch.ones(2), torch.nan)
    with pytest.raises(InvalidInputError, match=r"AffineSet takes points of shape \(2,\), .*, got \(3,\)"):
        AffineSet(torch.ones(1, 2)).project(torch.ones(3))


def test_batched_right_hand_sides_carry_derivatives():
    offset = torch.tensor([[0.0], [2.0]], dtype=torch.float64, requires_grad=True)
    Y = AffineSet(torch.tensor([[1.0, 1.0]], dtype=torch.float64), offset)
    z = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    u = torch.tensor([[1.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    (by_autograd,) = torch.autograd.grad(Y.project(z), offset, u)
    torch.testing.assert_close(by_autograd, torch.tensor([[0.5], [2.0]]).double())  # dP/doffset = (1, 1)/2


def test_small_equations_count_as_much_as_large_ones():
    for dtype, large in ((torch.float32, 1e4), (torch.float64, 1e9)):
        rows = torch.tensor([[large, 0.0], [0.0, 1 / large]], dtype=dtype)
        Y = AffineSet(rows, torch.tensor([large, 1 / large], dtype=dtype))
        assert torch.allclose(Y.project(torch.tensor([5.0, 5.0], dtype=dtype)), torch.ones(2, dtype=dtype))
        assert not Y.contains(torch.tensor([1.0, 5.0], dtype=dtype))


def test_a_contradiction_beside_a_large_right_hand_side_is_found():
    rows = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0]])
    with pytest.raises(EmptySetError, match="gap of 0.5"):
        AffineSet(rows, torch.tensor([1e4, 1.0, 2.0]))
    with pytest.raises(EmptySetError, match="gap of 0.5"):
        AffineSet(rows[1:].double(), torch.tensor([[1e15, 1e15], [1.0, 2.0]], dtype=torch.float64))


def test_a_batch_of_matrices_by_vmap():
    """vmap over the matrix, over both, and the Jacobian in the matrix, as in a loop."""
    generator = torch.Generator().manual_seed(0)
    matrices = normal_draw(generator, 4, 2, 5)
    matrices[1, 1] = 2 * matrices[1, 0]  # dependent rows
    offset = matrices @ normal_draw(generator, 5)
    z, v = normal_draw(generator, 2, 5)

    def product(matrix, offset):
        return AffineSet(matrix, offset).jacobian(z).apply(v)

    for function in (lambda m, c: AffineSet(m, c).project(z), product):
        looped = torch.stack([function(m, c) for m, c in zip(matrices, offset, strict=True)])
        torch.testing.assert_close(torch.func.vmap(function)(matrices, offset), looped)
    matrix, right = matrices[0].clone().requires_grad_(), offset[0]
    by_autograd = torch.autograd.functional.jacobian(lambda m: AffineSet(m, right).project(z), matrix)
    by_func = torch.func.jacrev(lambda m: AffineSet(m, right).project(z))(matrices[0])
    torch.testing.assert_close(by_func, by_autograd)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dependent_rows_in_lower_precision_with_gradients(dtype):
    """The rank is that of the float64 matrix, whatever the dtype of the point and the way derivatives are asked for."""
    matrix = torch.tensor([[1.0, 2.0, 3.0], [0.7, 1.4, 2.1], [1.0, 0.0, 1.0]], dtype=torch.float64) / 3
    Y = AffineSet(matrix, matrix.sum(-1))
    following = AffineSet(matrix.clone().requires_grad_(), matrix.sum(-1))
    z = torch.tensor([[1.0, -1.0, 0.3], [1e6, 2e6, -1e6]], dtype=torch.float64).to(dtype)
    exact = Y.project(z.double())
    slack = 10 * torch.finfo(dtype).eps
    torch._dynamo.reset()
    compiled = torch.compile(Y.project, backend="aot_eager", fullgraph=True)
    for answer in (following.project(z), torch.func.vmap(Y.project)(z), compiled(z)):
        assert answer.dtype == dtype
        torch.testing.assert_close(answer.detach().double(), exact, rtol=slack, atol=slack)


def test_a_far_point_keeps_the_equations_while_the_matrix_is_followed():
    Y = AffineSet(torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True), torch.ones(1).double())
    y = Y.project(torch.full((3,), 1e15, dtype=torch.float64))
    torch.testing.assert_close(y.sum().item(), 1.0, rtol=0, atol=1e-12)


def test_a_normal_without_values_is_refused():
    for make in (HalfSpace, Hyperplane):
        with pytest.raises(InvalidInputError, match="normal is on the device 'meta'"):
            make(torch.ones(3, device="meta"), 1.0)
