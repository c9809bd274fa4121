"""Polyhedra, with and without equations, redundant and degenerate ones included."""

from __future__ import annotations

import clarabel
import pytest
import torch

from bilevel.errors import EmptySetError, InvalidInputError, NotConvergedError
from bilevel.sets import Polyhedron
from bilevel.testing import SetTestCase

F64 = {"dtype": torch.float64}


class TestPolyhedron(SetTestCase):
    oracle_cases = 20  # 2,000 among the slow tests
    most_small_cases = 3
    parameter_cases = 1
    half = False
    small_dimensions = (1, 2)

    def make_set(self, generator, dimension, scale):
        rows = dimension + 2
        G = torch.randn(rows, dimension, generator=generator, **F64)
        center = torch.randn(dimension, generator=generator, **F64) * scale
        room = torch.rand(rows, generator=generator, **F64) * scale
        return Polyhedron(G, G @ center + room)

    def oracle(self, y, Y):
        return [Y.G.numpy() @ y <= Y.h.numpy()]


class TestPolyhedronWithEquations(SetTestCase):
    oracle_cases = 20  # 2,000 among the slow tests
    most_small_cases = 3
    parameter_cases = 1
    half = traceable_parameters = False
    dimensions = (2, 3, 5, 8, 13, 21, 34, 60)
    small_dimensions = (2,)

    def make_set(self, generator, dimension, scale):
        A = torch.randn((dimension + 2) // 3, dimension, generator=generator, **F64)
        G = torch.cat([-torch.eye(dimension, **F64), torch.ones(1, dimension, **F64)])
        center = torch.rand(dimension, generator=generator, **F64) * scale
        h = torch.cat([torch.zeros(dimension, **F64), center.sum()[None] * 1.5])
        return Polyhedron(G, h, A, A @ center)

    def oracle(self, y, Y):
        return [Y.G.numpy() @ y <= Y.h.numpy(), Y.A.numpy() @ y == Y.b.numpy()]


class TestDegeneratePolyhedron(SetTestCase):
    """A box, each of its rows given twice, with planes through its corners: all vertices are degenerate."""

    oracle_cases = 20  # 2,000 among the slow tests
    most_small_cases = 3
    parameter_cases = 1
    half = False
    small_dimensions = (1, 2)

    def make_set(self, generator, dimension, scale):
        eye, ones = torch.eye(dimension, **F64), torch.ones(1, dimension, **F64)
        G = torch.cat([eye, -eye, 2 * eye, -3 * eye, ones, -ones, eye + ones])
        size = torch.rand((), generator=generator, **F64) + 0.2
        h = G.clamp_min(0).sum(-1) - G.clamp_max(0).sum(-1)
        return Fixed(G, h * size * scale)

    def oracle(self, y, Y):
        return [Y.G.numpy() @ y <= Y.h.numpy()]


class Fixed(Polyhedron):
    """With repeated rows the derivative in each row alone is one-sided: not a parameter here."""

    def tensor_parameters(self):
        return {}

    def margin(self, z):
        return None


def test_one_right_hand_side_per_point():
    G = torch.cat([torch.eye(2, **F64), -torch.eye(2, **F64)])
    h = torch.tensor([[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]], **F64, requires_grad=True)
    z = torch.tensor([2.0, 0.5], **F64)
    Y = Polyhedron(G, h)
    assert Y.project(z).tolist() == [[1.0, 0.5], [2.0, 0.5]]
    u = torch.ones(2, 2, **F64)
    product = torch.autograd.grad(Y.project(z), h, u)[0]
    assert product.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0] * 4]


def test_dependent_equations():
    A = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]], **F64)
    Y = Polyhedron(-torch.eye(3, **F64), torch.zeros(3, **F64), A, torch.tensor([1.0, 2.0, 0.0], **F64))
    torch.testing.assert_close(Y.project(torch.tensor([1.0, 0.5, -1.0], **F64)), torch.tensor([0.75, 0.25, 0.0], **F64))


def test_a_path_of_points_is_followed_without_a_fresh_start(monkeypatch):
    """Rows that come and go along the path are found from the last active set, without Clarabel."""
    fresh = []
    solver = clarabel.DefaultSolver
    monkeypatch.setattr(clarabel, "DefaultSolver", lambda *a: fresh.append(1) or solver(*a))
    generator = torch.Generator().manual_seed(0)
    G = torch.randn(80, 30, generator=generator, **F64)
    Y = Polyhedron(G, torch.rand(80, generator=generator, **F64))
    start, end = 3 * torch.randn(2, 30, generator=generator, **F64)
    faces = set()
    for t in torch.linspace(0, 1, 40, **F64):
        z = torch.lerp(start, end, t)
        Y.jacobian(z)
        if t == 0:
            fresh.clear()
        faces.add(tuple((Y.h - G @ Y.project(z) < 1e-9).tolist()))
    assert len(faces) >= 10
    assert not fresh


@pytest.mark.parametrize("angle", [1e-3, 1e-6, 1e-8])
def test_nearly_parallel_rows(angle):
    """y_2 <= 0 and y_2 >= angle (y_1 - 1): the tip at (1, 0), its derivative, and a second one through h."""
    G = torch.tensor([[0.0, 1.0], [angle, -1.0]], **F64)
    h = torch.tensor([0.0, angle], **F64)
    z = torch.tensor([3.0, 1.0], **F64)
    Y = Polyhedron(G, h)
    torch.testing.assert_close(Y.project(z), torch.tensor([1.0, 0.0], **F64), rtol=0, atol=1e-15 / angle)
    assert int(Y.jacobian(z).dimension) == 0
    leaf = h.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(Polyhedron(G, leaf).project(z)[0], leaf)
    torch.testing.assert_close(by_autograd, torch.full((2,), 1 / angle, **F64))


@pytest.mark.parametrize("n", [21, 34, 60])
def test_many_rows_through_one_point(n):
    """Constant vectors on a box whose rows are given twice, cut by planes: the answer is constant as well."""
    Y = TestDegeneratePolyhedron().set_at(0, n, 1.0)
    half = float(Y.h[0])
    z = torch.linspace(-3, 3, 31, **F64)[:, None] * torch.ones(n, **F64)
    torch.testing.assert_close(Y.project(z), z.clamp(-half, half), rtol=0, atol=1e-12)


def test_rows_too_parallel_to_tell_apart_are_refused():
    G = torch.tensor([[0.0, 1.0], [1e-10, -1.0]], **F64)
    with pytest.raises(NotConvergedError, match="drop rows that nearly depend on others"):
        Polyhedron(G, torch.tensor([0.0, 1e-10], **F64)).project(torch.tensor([3.0, 1.0], **F64))


@pytest.mark.parametrize("gap", [1.0, 1e-3, 1e-6, 1e-8, 1e-10])
@pytest.mark.parametrize("offset", [0.0, 1.0, -3.0])
def test_the_least_violation_is_told_however_small(gap, offset):
    """y_1 <= offset and y_1 >= offset + gap: every point breaks one of them by gap/2."""
    rows = torch.tensor([[1.0, 0.0], [-3.0, 0.0]], **F64)
    h = torch.tensor([offset, -3 * (offset + gap)], **F64)
    gap = float(h[1] / -3 - h[0])  # what rounding has left of it
    for make in (
        lambda: Polyhedron(rows, h),
        lambda: Polyhedron(rows, h.requires_grad_()).project(torch.ones(2, **F64)),
    ):
        with pytest.raises(EmptySetError, match="every y breaks a row by") as found:
            make()
        stated = float(str(found.value).split("by ")[1].split()[0])
        assert stated == pytest.approx(gap / 2, rel=0.05)


def test_a_set_thinner_than_rounding_is_not_empty():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], **F64)
    Y = Polyhedron(rows, torch.tensor([1.0, -1.0 - 2e-13], **F64))
    y = Y.project(torch.tensor([[5.0, 2.0], [-5.0, 2.0]], **F64))
    torch.testing.assert_close(y, torch.tensor([[1.0, 2.0], [1.0, 2.0]], **F64), rtol=0, atol=1e-12)
    assert Y.contains(y)


def test_errors_carry_the_numbers():
    line = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], **F64)
    with pytest.raises(EmptySetError, match="no common point: every y breaks a row by 2"):
        Polyhedron(line, torch.tensor([-2.0, -2.0], **F64))
    with pytest.raises(EmptySetError, match=r"Ay = b has no solution: the best y leaves a gap of 0\.5"):
        Polyhedron(A=line.abs(), b=torch.tensor([1.0, 2.0], **F64))
    with pytest.raises(InvalidInputError, match="h must have 2 entries, one per row of G"):
        Polyhedron(line, torch.zeros(3))
    with pytest.raises(InvalidInputError, match="needs G, A or both"):
        Polyhedron()
    with pytest.raises(InvalidInputError, match=r"Polyhedron takes points of shape \(2,\), .*, got \(3,\)"):
        Polyhedron(line, torch.ones(2, **F64)).project(torch.zeros(3, **F64))


@pytest.mark.parametrize(
    ("A", "b"), [([[1.0, 0.0], [1.0, 0.0]], [0.0, 1.0]), ([[0.0, 0.0]], [1.0]), ([[1.0, 2.0], [2.0, 4.0]], [1.0, 3.0])]
)
@pytest.mark.parametrize("followed", ["A", "b"])
def test_contradicting_equations_are_refused_also_while_they_follow_x(A, b, followed):
    given = {"A": torch.tensor(A, dtype=torch.float64), "b": torch.tensor(b, dtype=torch.float64)}
    given[followed].requires_grad_()
    with pytest.raises(EmptySetError, match="Ay = b has no solution: the best y leaves a gap of"):
        Polyhedron(**given)
