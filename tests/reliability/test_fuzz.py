"""Whatever is passed to the public functions: a correct, finite answer or an error of ours, within a second."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.reliability import fuzz

import bilevel
from bilevel import sets

PHASES = [Phase.explicit, Phase.generate, Phase.shrink]
options: Any = {"deadline": None, "database": None, "phases": PHASES, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module", autouse=True)
def warm():
    """What is imported when first used is imported now: it counts to no call."""
    point = torch.zeros(3).double()
    for made in (sets.Polyhedron(torch.eye(3).double(), torch.ones(3).double()), sets.MonotoneCone()):
        made.project(point + 2)
    sets.Intersection(sets.L1Ball(1.0), sets.Box(-1.0, 0.5)).project(point + 2)
    sets.BirkhoffPolytope(3).project(torch.ones(3, 3))
    bilevel.minimize(fuzz.clipped(), point, point, steps=1, solver=bilevel.DMLCBO(upper_step=0.1))
    for diagnose in (bilevel.check_hypergradient, bilevel.diagnostics.estimate_constants):
        diagnose(fuzz.clipped(), point + 0.3, point)
    with contextlib.suppress(bilevel.MissingExtraError):
        bilevel.run.TensorBoard("no folder is made before a run begins")


@settings(max_examples=300, derandomize=True, **options)
@given(fuzz.calls())
def test_a_few_hundred_calls(call):
    fuzz.attempt(call)


@pytest.mark.reliability
@pytest.mark.parametrize("part", range(10))
def test_10_000_calls(part):
    """Ten times a thousand calls with fixed seeds; a good share of them is answered, and not only refused."""
    answered: list[bool] = []

    @seed(part)
    @settings(max_examples=1000, **options)
    @given(fuzz.calls())
    def many(call):
        answered.append(fuzz.attempt(call))

    many()
    assert len(answered) >= 1000
    assert sum(answered) > 150


# --- what the calls found ---------------------------------------------------------------------------------------------

META = torch.zeros(3, device="meta", dtype=torch.float64)
POINT = torch.zeros(3, dtype=torch.float64)


@pytest.mark.parametrize(
    "call",
    [
        lambda: bilevel.solve_lower(fuzz.clipped(), META, POINT),
        lambda: bilevel.hypergradient(fuzz.clipped(), POINT, META),
        lambda: bilevel.minimize(fuzz.clipped(), META, POINT, solver=bilevel.DMLCBO(upper_step=0.1)),
        lambda: sets.L1Ball(1.0).project(META),
        lambda: sets.L1Ball(META[0]),
        lambda: sets.Box(META, 1.0),
    ],
)
def test_a_tensor_without_values(call):
    with pytest.raises(
        bilevel.InvalidInputError, match="on the device 'meta', where tensors have a shape but no values"
    ):
        call()


def test_a_sparse_tensor():
    with pytest.raises(bilevel.InvalidTypeError, match="layout torch.sparse_coo: use to_dense"):
        sets.L1Ball(1.0).project(POINT.to_sparse())


@pytest.mark.parametrize("tol", [torch.ones(2), "a", math.nan, 1j, 0])
def test_tolerances_that_are_none(tol):
    with pytest.raises(bilevel.InvalidInputError, match="tol must be a positive number"):
        bilevel.solve_lower(fuzz.clipped(), POINT, POINT, tol=tol)


@pytest.mark.parametrize("steps", [None, 0, "a", 2.5, 1 << 70])
def test_counts_that_are_none(steps):
    with pytest.raises(bilevel.InvalidInputError, match="max_steps must be"):
        bilevel.solve_lower(fuzz.clipped(), POINT, POINT, max_steps=steps)


@pytest.mark.parametrize("name", ["solve_lower", "upper_value", "lower_residual", "hypergradient", "argmin"])
def test_shapes_that_do_not_fit_are_explained(name):
    with pytest.raises(
        bilevel.InvalidInputError, match=r"lower\(x, y0?\) failed with RuntimeError|upper\(x, y\) failed"
    ):
        getattr(bilevel, name)(fuzz.clipped(), torch.zeros(5).double(), torch.zeros(2, 3).double())


def test_a_residual_that_overflows():
    with pytest.raises(bilevel.NonFiniteError, match="the residual at y of size 1e"):
        bilevel.lower_residual(fuzz.clipped(), torch.zeros(3).double(), torch.full((3,), 1e160, dtype=torch.float64))


def test_a_step_that_is_a_huge_integer():
    with pytest.raises(bilevel.InvalidInputError, match=r"upper_step = 11805.* write it as 1.18059e\+21"):
        bilevel.solvers.PenaltyMomentum(upper_step=1 << 70)


@pytest.mark.parametrize("callbacks", [None, 3, ["a"], print])
def test_callbacks_that_are_none(callbacks):
    with pytest.raises(bilevel.InvalidTypeError, match="callbacks must be a list of functions"):
        bilevel.minimize(
            fuzz.clipped(), POINT, POINT, steps=1, callbacks=callbacks, solver=bilevel.DMLCBO(upper_step=0.1)
        )


def test_a_transport_plan_too_far_away():
    """At 1e30 float64 has no digits left for sums of 1: an error, where the answer once broke its own sums by 0.3."""
    far = torch.tensor([[0.0957444, -0.7761763, -1.2266798], [-0.0851113, 0.1672867, 1.1859654],
                        [-0.0292873, -0.5765724, -2.8757747]]).double()  # fmt: skip
    with pytest.raises(bilevel.NotConvergedError, match="too large beside sums up to 0.5"):
        sets.TransportPolytope(fuzz.PLENTY, fuzz.PLENTY).project(1e30 * far)


def test_an_affine_set_very_far_away():
    """The rounding of a point at 1e15 in float32 is removed as often as it takes."""
    matrix = torch.tensor([[0.0, -2.0, 1.0], [0.0, -1.0, -1.0]])
    made = sets.AffineSet(matrix, torch.tensor([1.0, -1.5]))
    for size in (1e3, 1e9, 1e15):
        y = made.project(torch.tensor([0.0, -size, 3 * size]))
        assert torch.allclose(matrix @ y, torch.tensor([1.0, -1.5]), atol=1e-5)


def test_a_capped_simplex_very_far_away():
    """The largest entry takes all, up to its cap: (1, 0, 0), and (2, 0, 1) when the total is 3."""
    z = torch.tensor([1.5e30, -3e29, -2e29], dtype=torch.float64)
    for size in (1e-25, 1.0, 1e30):
        assert torch.allclose(sets.CappedSimplex(2.0, 1.0).project(size * z), torch.eye(3, dtype=torch.float64)[0])
        nearest = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64)
        assert torch.allclose(sets.CappedSimplex(2.0, 3.0).project(size * z), nearest)


def test_short_normals_and_rows():
    with pytest.raises(bilevel.InvalidInputError, match=r"offset / \|normal\| overflows in torch.float32"):
        sets.HalfSpace(torch.full((3,), 1e-300, dtype=torch.float64), 2.0).project(torch.zeros(3))
    with pytest.raises(bilevel.InvalidInputError, match="so short that dividing by its length overflows"):
        sets.Polyhedron(torch.full((1, 3), 1e-310, dtype=torch.float64), torch.ones(1).double())
    with pytest.raises(bilevel.InvalidInputError, match=r"takes points of shape \(3,\), .*, got \(5,\)"):
        sets.Polyhedron(torch.eye(3), torch.ones(3)).contains(torch.zeros(5))
