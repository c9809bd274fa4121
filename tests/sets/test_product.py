"""Products of sets."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import InvalidInputError, InvalidTypeError
from bilevel.sets import Box, FreeSpace, L1Ball, L2Ball, NonNegative, ProductSet, PSDCone, Simplex
from bilevel.testing import SetTestCase


def positive(generator, *shape):
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2


class TestProductSet(SetTestCase):
    """Slices of one tensor: an l1 ball, a box and the simplex."""

    small_dimensions = (1, 2, 3, 4)

    def make_set(self, generator, dimension, scale):
        """A third of the entries each, the simplex taking the rest; with fewer than three entries some are missing."""
        size = dimension // 3
        radius = positive(generator) * scale
        box = Box(-positive(generator, max(size, 1)) * scale, positive(generator, max(size, 1)) * scale)
        if dimension < 3:
            return ProductSet([box, Simplex(radius)][:dimension], sizes=[1] * dimension)
        return ProductSet([box, Simplex(radius), L1Ball(radius)], sizes=[size, dimension - 2 * size, size])

    def oracle(self, y, Y):
        constraints, start = [], 0
        for part, size in zip(Y.sets.values(), Y.sizes, strict=True):
            piece, start = y[start : start + size], start + size
            if isinstance(part, Box):
                constraints += [piece >= part.lower.numpy(), piece <= part.upper.numpy()]
            elif isinstance(part, Simplex):
                constraints += [piece >= 0, cvxpy.sum(piece) == part.radius.item()]
            else:
                constraints += [cvxpy.norm1(piece) <= part.radius.item()]
        return constraints


def test_dictionaries_act_entry_by_entry():
    radius = torch.tensor(0.5, requires_grad=True)
    Y = ProductSet({"w": L2Ball(radius), "b": FreeSpace()})
    z = {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([7.0])}
    p = Y.project(z)
    torch.testing.assert_close(p["w"], torch.tensor([0.3, 0.4]))
    assert torch.equal(p["b"], z["b"])
    jacobian = Y.jacobian(z)
    assert not jacobian.is_projector
    assert jacobian.apply(z)["b"] is z["b"]
    torch.testing.assert_close(torch.autograd.grad(p["w"][0], radius, retain_graph=True)[0], torch.tensor(0.6))
    torch.testing.assert_close(Y.distance(z)["w"], torch.tensor(4.5))
    assert Y.margin(z)["b"] == torch.inf
    assert Y.contains(p)
    assert "in entry 'w': the norm exceeds the radius 0.5" in Y.contains(z).reason
    assert Y.tensor_parameters().keys() == {"w.radius"}
    assert Y.replace(**{"w.radius": 2.0}).sets["w"].radius == 2.0
    point = Y.random_point(torch.Generator().manual_seed(0), {"w": (4, 2), "b": (1,)})
    assert point["w"].shape == (4, 2)
    assert Y.contains(point)


def test_slices_keep_batches():
    Y = ProductSet({"a": NonNegative(), "b": L1Ball(1.0)}, sizes=[1, 2])
    z = torch.tensor([[-1.0, 3.0, 0.0], [2.0, 0.0, -4.0]])
    assert Y.project(z).tolist() == [[0.0, 1.0, 0.0], [2.0, 0.0, -1.0]]
    assert Y.jacobian(z).dimension.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ProductSet({}), InvalidTypeError, "non-empty dictionary"),
        (lambda: ProductSet([FreeSpace()]), InvalidTypeError, "with sizes"),
        (lambda: ProductSet({"a": 3}), InvalidTypeError, r"sets\['a'\] must be a convex set, got 3"),
        (lambda: ProductSet([FreeSpace()], sizes=[0]), InvalidInputError, "positive integers"),
        (lambda: ProductSet([FreeSpace()], sizes=[1, 2]), InvalidInputError, "1 positive integers"),
        (lambda: ProductSet([PSDCone()], sizes=[4]), InvalidInputError, "points of 2 dimensions"),
        (
            lambda: ProductSet({"a": FreeSpace()}).project({"b": 1}),
            InvalidInputError,
            r"entries \['a'\], got .*\['b'\]",
        ),
        (
            lambda: ProductSet([FreeSpace()], sizes=[2]).project(torch.ones(3)),
            InvalidInputError,
            "takes 2 entries",
        ),
        (lambda: ProductSet({"a": FreeSpace()}).replace(radius=1.0), InvalidInputError, r"no parameter \['radius'\]"),
    ],
)
def test_bad_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
