"""`LinearSolve` on problems with structure of their own."""

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.linearization import AutogradLinearization
from bilevel.random import RandomStreams

METRIC = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.0]]).double()
TARGET = torch.tensor([0.3, -0.4, 0.8]).double()


class OnTheFace(AutogradLinearization):
    """Its own direct solve, and vectors that are known on the support of the face alone once it is restricted."""

    known = None

    def restrict(self, *jacobians):
        near = OnTheFace(self.problem, self.x, self.y, self.batch)
        near.known = jacobians[0].support
        return near

    def _upper_gradients(self):
        f_x, f_y = super()._upper_gradients()
        return f_x, f_y if self.known is None else torch.where(self.known, f_y, torch.nan)

    def solve_on_face(self, face, v):
        assert bool(torch.isfinite(v).all()) or not self.problem.moving
        inside = face.support.nonzero()[:, 0]
        w = torch.zeros_like(v)
        w[inside] = torch.linalg.solve(METRIC[inside][:, inside], v[inside])
        return w


class Direct(bilevel.Problem):
    def linearize(self, x, y, batch=None):
        return OnTheFace(self, x, y, batch)


def test_a_direct_solve_on_a_moving_set_gets_the_whole_gradient_of_f():
    """A set that moves needs f_y off the face too, so the restricted linearisation is not asked for it."""

    def parts(make):
        return make(
            upper=lambda x, y: (y - TARGET).square().sum() / 2 + (x * y).sum(),
            lower=lambda x, y: (y - x) @ METRIC @ (y - x) / 2,
            constraint=lambda x: sets.Box(-0.5, 0.2 + 0.1 * x.sum()),
            y0=torch.zeros(3).double(),
        )

    direct, plain = parts(Direct), parts(bilevel.Problem)
    x = torch.tensor([0.9, -0.2, 0.1]).double()
    y = bilevel.solve_lower(plain, x).y
    method, streams = bilevel.LinearSolve(), RandomStreams()
    found = method.estimate(direct.linearize(x, y), streams).gradient
    wanted = method.estimate(plain.linearize(x, y), streams).gradient
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1e-24, 1e-10, 1e20])
def test_right_hand_sides_whose_squares_leave_the_range_of_float32(size):
    problem = bilevel.Problem(lambda x, y: size * y.sum(), lambda x, y: (y - x).square().sum())
    x = torch.ones(3)
    assert torch.allclose(bilevel.hypergradient(problem, x, x.clone()), torch.full((3,), size), rtol=1e-5, atol=0.0)


def test_smoothing_is_an_object():
    for method in (bilevel.LinearSolve, bilevel.Neumann):
        with pytest.raises(bilevel.InvalidTypeError, match="smoothing must be an object such as Exact"):
            method(smoothing="exact")
