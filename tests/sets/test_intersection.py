"""Intersections, and sets given by a projection."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError, IncompatibleError, InvalidInputError, InvalidTypeError, NotConvergedError
from bilevel.sets import (
    Box,
    HalfSpace,
    Hyperplane,
    Intersection,
    L1Ball,
    L2Ball,
    NonNegative,
    NuclearNormBall,
    Polyhedron,
    PSDCone,
    Simplex,
    from_projection,
)
from bilevel.testing import SetTestCase

F64 = {"dtype": torch.float64}


class TestIntersection(SetTestCase):
    """A ball, a box and a half-space around a common point."""

    oracle_cases = 20  # 2,000 among the slow tests
    parameter_cases = 1
    most_small_cases = 3
    accuracy = 1e-10
    half = traceable = False
    small_dimensions = (1, 2)

    def make_set(self, generator, dimension, scale):
        center, normal = torch.randn(2, dimension, generator=generator, **F64)
        radius, room = torch.rand(2, generator=generator, **F64) + 0.3
        box = Box((center - 0.5) * scale, (center + 0.6) * scale)
        ball = L2Ball(radius * scale, center * scale)
        return Intersection(ball, box, HalfSpace(normal, (normal @ center + 0.2 * room) * scale))

    def oracle(self, y, Y):
        ball, box, half = Y.sets
        return [
            # Squared and in units of the radius: as a norm, the solver's own residual is too large in 4 % of the cases.
            cvxpy.sum_squares((y - ball.center.numpy()) / ball.radius.item()) <= 1,
            y >= box.lower.numpy(),
            y <= box.upper.numpy(),
            half.normal.numpy() @ y <= half.offset.item(),
        ]


class TestFromProjection(SetTestCase):
    oracle_cases = 30  # 2,000 among the slow tests

    def make_set(self, generator, dimension, scale):
        ball = L1Ball((torch.rand((), generator=generator, **F64) + 0.2) * scale)
        return from_projection(ball.project)

    def oracle(self, y, Y):
        return [cvxpy.norm1(y) <= Y.function.__self__.radius.item()]

    def test_bad_points_are_refused(self):
        with pytest.raises(ValueError, match="NaN or infinite"):
            from_projection(torch.relu).project(torch.tensor([float("nan")]))

    test_torch_func = None  # the Jacobian product is a backward pass of its own

    def _questions(self, Y, z):
        return [Y.project, Y.distance]


def test_intersections_that_have_a_closed_form():
    z = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), **F64) * 2
    pairs = [
        (Intersection(L1Ball(1.0), NonNegative(), HalfSpace(-torch.ones(6, **F64), -1.0)), Simplex(1.0)),
        (Intersection(NonNegative(), Box(-1.0, 0.5)), Box(0.0, 0.5)),
        (Intersection(L2Ball(1.0), L2Ball(2.0)), L2Ball(1.0)),
    ]
    for Y, known in pairs:
        torch.testing.assert_close(Y.project(z), known.project(z), rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", range(6))
def test_half_spaces_are_a_polyhedron(seed):
    """Two algorithms, points and Jacobians: some rows nearly parallel, one given twice, a common point on them all."""
    generator = torch.Generator().manual_seed(seed)
    rows, center = torch.randn(8, 5, generator=generator, **F64), torch.randn(5, generator=generator, **F64)
    rows[6], rows[7] = rows[0] + 1e-5 * rows[1], 2 * rows[2]
    h = rows @ center + (seed % 2) * torch.rand(8, generator=generator, **F64)
    Y, known = Intersection(*(HalfSpace(row, side) for row, side in zip(rows, h, strict=True))), Polyhedron(rows, h)
    z = center + 3 * torch.randn(10, 5, generator=generator, **F64)
    torch.testing.assert_close(Y.project(z), known.project(z), rtol=0, atol=1e-10)
    if seed % 2:  # at a common point of all rows, every z has a kink nearby
        v = torch.randn(10, 5, generator=generator, **F64)
        torch.testing.assert_close(Y.jacobian(z).apply(v), known.jacobian(z).apply(v), rtol=0, atol=1e-7)


def test_matrices_with_a_second_derivative():
    Y = Intersection(PSDCone(), NuclearNormBall(torch.tensor(1.0, **F64)))
    z = torch.randn(3, 3, generator=torch.Generator().manual_seed(3), **F64).requires_grad_()
    assert Y.contains(Y.project(z))
    assert torch.autograd.gradcheck(Y.project, (z,))
    assert torch.autograd.gradgradcheck(Y.project, (z,))


def test_an_empty_intersection_is_noticed():
    with pytest.raises(EmptySetError, match=r"no common point .* every point is at least 0\.707 away from one of them"):
        Intersection(Box(0.0, 1.0), Box(2.0, 3.0)).project(torch.zeros(2))
    with pytest.raises(IncompatibleError, match="points of the same kind"):
        Intersection(PSDCone(), L2Ball())
    with pytest.raises(InvalidInputError, match="max_rounds must be at least 1, got 0"):
        Intersection(L2Ball(), max_rounds=0)


@pytest.mark.parametrize("distance", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4])
def test_emptiness_is_judged_by_the_sets_and_not_by_the_point(distance, gap):
    balls = L2Ball(1.0, torch.tensor([0.0, 0.0], **F64)), L2Ball(1.0, torch.tensor([2.0 + gap, 0.0], **F64))
    boxes = Box(0.0, 1.0), Box(1.0 + gap, 3.0)
    z = torch.tensor([1.0, 1.0], **F64) * distance
    for sets, away in ((balls, gap / 2), (boxes, gap / 2**0.5)):
        with pytest.raises(EmptySetError, match="every point is at least") as found:
            Intersection(*sets).project(z)
        assert 0.8 * away <= float(str(found.value).split("at least ")[1].split()[0]) <= 1.01 * away


TIP = torch.tensor([1.0, 0.0], **F64)
TOUCHING = {
    "two balls": (L2Ball(1.0, torch.zeros(2, **F64)), L2Ball(1.0, 2 * TIP)),
    "ball and tangent": (L2Ball(1.0), Hyperplane(TIP, 1.0)),
    "ball and half-space": (L2Ball(1.0), HalfSpace(-TIP, -1.0)),
}


@pytest.mark.parametrize("name", TOUCHING)
def test_sets_that_touch_in_one_point(name):
    """No multipliers exist: the answer is good to 1e-7, or refused with the numbers."""
    Y = Intersection(*TOUCHING[name])
    for z in torch.tensor([[1.0, 1.0], [5.0, 0.0], [3.0, -1.0], [0.5, 1e-3], [300.0, 1000.0], [-2.0, 1.0]], **F64):
        assert float((Y.project(z) - TIP).norm()) <= 1e-7 * max(1.0, float(z.norm()))
    with pytest.raises(NotConvergedError, match="hardly touch: enlarge one of them, or raise tol"):
        Intersection(*TOUCHING[name], tol=1e-10).project(torch.tensor([1.0, 1.0], **F64))


@pytest.mark.parametrize("width", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
def test_thin_lenses(width):
    """Two balls that overlap by `width`: a lens of height sqrt(width)."""
    Y = Intersection(L2Ball(1.0, torch.zeros(2, **F64)), L2Ball(1.0, (2 - width) * TIP))
    corner = torch.tensor([1 - width / 2, (width - width**2 / 4) ** 0.5], **F64)
    torch.testing.assert_close(Y.project(torch.tensor([1.0, 1.0], **F64)), corner, rtol=0, atol=1e-10)


@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6, 1e-8])
def test_nearly_parallel_half_spaces(angle):
    """y_2 <= 0 and y_2 >= angle (y_1 - 1): a wedge with its tip at (1, 0)."""
    lower = HalfSpace(torch.tensor([angle, -1.0], **F64), angle)
    Y = Intersection(HalfSpace(torch.tensor([0.0, 1.0], **F64)), lower)
    torch.testing.assert_close(Y.project(torch.tensor([3.0, 1.0], **F64)), TIP, rtol=0, atol=1e-9)
    inside = torch.tensor([-1.0, -angle], **F64)
    torch.testing.assert_close(Y.project(inside), inside, rtol=0, atol=1e-15)


def test_thin_boxes_and_far_points():
    box = Box(0.0, 1e-9)
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), **F64) * 1e3
    y = Intersection(box, HalfSpace(torch.ones(4, **F64), 1e-9)).project(z)
    assert Intersection(box, HalfSpace(torch.ones(4, **F64), 1e-9)).contains(y)
    # Scaled by 1e-9 the points are 1e15 away: the answer is a corner, that of the largest entry, or zero.
    corner = torch.nn.functional.one_hot(z.argmax(-1), 4) * (z.amax(-1, keepdim=True) > 0) * 1e-9
    torch.testing.assert_close(y, corner.double(), rtol=0, atol=1e-15)


def test_a_projection_must_be_a_function_of_points():
    with pytest.raises(InvalidTypeError, match="takes a function"):
        from_projection(1.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="must give as many"):
        from_projection(lambda z: z[..., :1]).project(torch.zeros(3))


def test_gradients_leave_the_value_of_a_far_point():
    z = torch.tensor([1e12, 0.3, -0.2, 0.7], dtype=torch.float64)
    Y = Intersection(L2Ball(1.0), Box(-0.9, 0.9))
    y = Y.project(z.clone().requires_grad_())
    assert torch.equal(y, Y.project(z))
    assert Y.contains(y)


KINKED = {
    "l1 ball and box": Intersection(L1Ball(2.0), Box(-1.0, 1.0)),
    "simplex and box": Intersection(Simplex(2.0), Box(-1.0, 1.0)),
    "one set twice": Intersection(L1Ball(2.0), L1Ball(2.0)),
    "one set within a tangent": Intersection(L2Ball(2.0), Box(-2.0, 2.0), NonNegative()),
    "three half-planes through a point": Intersection(
        *(HalfSpace(torch.tensor(normal, **F64), 2.0) for normal in ([1.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0]))
    ),
}


@pytest.mark.parametrize("name", KINKED)
def test_at_kinks_of_several_sets_the_jacobian_is_one_of_its_limits(name):
    """At points of a lattice; the limits are central differences at points nearby."""
    Y, step = KINKED[name], 1e-7
    for z in torch.combinations(torch.tensor([2.0, 1.0, 0.0], **F64), 3, with_replacement=True):
        H = Y.jacobian(z).apply(torch.eye(3, **F64))
        d = torch.randn(60, 1, 3, generator=torch.Generator().manual_seed(1), **F64)
        near, h = z + 1e-5 * d / d.norm(dim=-1, keepdim=True), step * torch.eye(3, **F64)
        limits = (Y.project(near + h) - Y.project(near - h)) / (2 * step)
        assert float((limits - H).abs().amax((1, 2)).min()) <= 1e-4, f"H at {z.tolist()} is {H.tolist()}"
        point = z.clone().requires_grad_()
        for y, row in zip(Y.project(point), H, strict=True):
            torch.testing.assert_close(torch.autograd.grad(y, point, retain_graph=True)[0], row, rtol=0, atol=1e-9)
