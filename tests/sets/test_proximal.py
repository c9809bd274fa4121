"""Penalties: proximal maps against cvxpy, derivatives against differences."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import InvalidInputError, InvalidTypeError
from bilevel.sets import ElasticNetPenalty, GroupL1Penalty, Indicator, L1Ball, L1Penalty

F64 = {"dtype": torch.float64}
GROUPS = torch.tensor([0, 2, 0, 1, 2, 2])
WEIGHTS = torch.tensor([0.5, 2.0, 1.0], **F64)
CASES = {
    "l1": (L1Penalty(torch.tensor(0.7, **F64)), lambda y: 0.7 * cvxpy.norm1(y)),
    "l1 per entry": (
        L1Penalty(torch.linspace(0.1, 1, 6, **F64)),
        lambda y: torch.linspace(0.1, 1, 6).numpy() @ cvxpy.abs(y),
    ),
    "elastic net": (
        ElasticNetPenalty(torch.tensor(0.7, **F64), torch.tensor(0.4, **F64)),
        lambda y: 0.7 * cvxpy.norm1(y) + 0.2 * cvxpy.sum_squares(y),
    ),
    "group l1": (
        GroupL1Penalty(GROUPS, WEIGHTS),
        lambda y: sum(w * cvxpy.norm2(y[GROUPS.numpy() == g]) for g, w in enumerate(WEIGHTS.tolist())),
    ),
    "indicator": (Indicator(L1Ball(torch.tensor(1.0, **F64))), None),
}


def points(count, seed=0):
    z = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), **F64)
    return z * torch.logspace(-1, 1, count, **F64)[:, None]


@pytest.mark.parametrize("name", CASES)
def test_prox_agrees_with_cvxpy(name):
    penalty, expression = CASES[name]
    y, z = cvxpy.Variable(6), cvxpy.Parameter(6)
    step = 0.3
    constraints = [cvxpy.norm1(y) <= 1] if expression is None else []
    penalised = 0 if expression is None else step * expression(y)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(y - z) / 2 + penalised), constraints)
    for point in points(40):
        z.value = point.numpy()
        problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        mine = penalty.prox(point, step)
        torch.testing.assert_close(mine, torch.from_numpy(y.value), rtol=0, atol=1e-6)
        if expression is not None:
            y.value = mine.numpy()
            torch.testing.assert_close(float(penalty.value(mine)), float(expression(y).value))
            best = problem.objective.value
            y.value = mine.numpy()
            assert problem.objective.value <= best + 1e-9


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("name", ["l1", "group l1"])
def test_any_scale(name, scale):
    """prox(s z, s step) = s prox(z, step) for penalties of degree one."""
    penalty, z = CASES[name][0], points(20)
    torch.testing.assert_close(penalty.prox(scale * z, scale * 0.3) / scale, penalty.prox(z, 0.3))


@pytest.mark.parametrize("name", CASES)
def test_derivatives_three_ways(name):
    """Closed form, autograd and central differences; symmetric between 0 and 1; second derivatives."""
    penalty, z = CASES[name][0], points(12, seed=1)
    v = torch.randn(z.shape, generator=torch.Generator().manual_seed(2), **F64)
    face = penalty.jacobian(z, 0.3)
    closed = face.apply(v)
    h = 1e-6
    difference = (penalty.prox(z + h * v, 0.3) - penalty.prox(z - h * v, 0.3)) / (2 * h)
    torch.testing.assert_close(closed, difference, rtol=1e-6, atol=1e-6)
    leaf = z.clone().requires_grad_()
    torch.testing.assert_close(closed, torch.autograd.grad(penalty.prox(leaf, 0.3), leaf, v)[0])
    assert torch.autograd.gradcheck(lambda z: penalty.prox(z, 0.3), (leaf,))
    assert torch.autograd.gradgradcheck(lambda z: penalty.prox(z, 0.3), (leaf,))
    matrix = penalty.jacobian(z[5], 0.3).apply(torch.eye(6, **F64))
    torch.testing.assert_close(matrix, matrix.T)
    values = torch.linalg.eigvalsh(matrix)
    assert float(values.min()) >= -1e-12
    assert float(values.max()) <= 1 + 1e-12
    assert int(penalty.jacobian(z[5], 0.3).dimension) == int((values > 1e-12).sum())


@pytest.mark.parametrize("name", [name for name in CASES if name != "indicator"])
def test_parameter_derivatives(name):
    penalty, z = CASES[name][0], points(12, seed=3)
    values = {name: getattr(penalty, name) for name in penalty.parameters}
    for key, value in values.items():
        if not value.is_floating_point():
            continue
        leaf = value.clone().requires_grad_()
        project = lambda w, key=key: type(penalty)(**{**values, key: w}).prox(z, 0.3)  # noqa: E731
        assert torch.autograd.gradcheck(project, (leaf,))


def test_one_step_per_point_and_zero():
    z = torch.tensor([[3.0, -1.0], [3.0, -1.0]])
    assert L1Penalty(1.0).prox(z, torch.tensor([1.0, 0.5])).tolist() == [[2.0, 0.0], [2.5, -0.5]]
    assert torch.equal(GroupL1Penalty(torch.tensor([0, 0])).prox(torch.zeros(2)), torch.zeros(2))
    assert float(Indicator(L1Ball(1.0)).value(torch.ones(3))) == float("inf")


def test_errors_carry_the_numbers():
    with pytest.raises(InvalidInputError, match="l1 must be at least 0, got -1"):
        L1Penalty(-1.0)
    with pytest.raises(InvalidInputError, match="step must be at least 0, got -2"):
        L1Penalty().prox(torch.zeros(2), -2.0)
    with pytest.raises(InvalidInputError, match="one value per group, 2, got"):
        GroupL1Penalty(torch.tensor([0, 1]), torch.ones(3))
    with pytest.raises(InvalidInputError, match="2 group numbers for a point of 3 entries"):
        GroupL1Penalty(torch.tensor([0, 1])).prox(torch.zeros(3))
    with pytest.raises(InvalidTypeError, match="Indicator takes a convex set"):
        Indicator(1.0)  # type: ignore[arg-type]


PLAIN = [L1Penalty(0.7), ElasticNetPenalty(0.7, 0.4), GroupL1Penalty(GROUPS, 0.7), Indicator(L1Ball(1.0))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_the_dtype_is_that_of_the_point(name, dtype):
    """Weights in float64 change neither the dtype of the answer nor its accuracy."""
    penalty, z = CASES[name][0], points(12, seed=5).to(dtype)
    v = torch.randn(z.shape, generator=torch.Generator().manual_seed(6), **F64).to(dtype)
    eps = torch.finfo(dtype).eps
    answers = [
        (penalty.prox(z, 0.3), penalty.prox(z.double(), 0.3)),
        (penalty.jacobian(z, 0.3).apply(v), penalty.jacobian(z.double(), 0.3).apply(v.double())),
        (penalty.value(z), penalty.value(z.double())),
    ]
    for mine, exact in answers:
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), exact, rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize("penalty", PLAIN, ids=repr)
def test_bad_points_are_refused(penalty):
    for ask in (penalty.prox, penalty.jacobian, penalty.value):
        for bad in ([1.0] * 6, torch.ones(6).numpy(), torch.ones(6, dtype=torch.int64)):
            with pytest.raises(InvalidTypeError, match="takes"):
                ask(bad)
        for bad in (torch.ones(()), torch.ones(2, 0), torch.full((6,), torch.nan), torch.full((6,), torch.inf)):
            with pytest.raises(InvalidInputError):
                ask(bad)


def test_weights_and_steps_of_another_shape_are_refused():
    with pytest.raises(InvalidInputError, match=r"l1 of shape \(3,\) does not fit points of shape \(2,\)"):
        L1Penalty(torch.ones(3)).prox(torch.ones(2))
    with pytest.raises(InvalidInputError, match=r"step of shape \(3,\) does not fit points of shape \(2, 6\)"):
        GroupL1Penalty(GROUPS).prox(torch.ones(2, 6), torch.ones(3))


@pytest.mark.parametrize("penalty", PLAIN, ids=repr)
def test_vmap(penalty):
    z = points(5)
    torch.testing.assert_close(torch.func.vmap(penalty.prox)(z), penalty.prox(z))


def test_without_a_threshold_there_is_no_kink_at_zero():
    """l1, weight or step 0: the map is linear, with derivative 1/(1 + step l2) also at z = 0."""
    z, v, none = torch.tensor([0.0, 0.0, 2.0], **F64), torch.tensor([1.0, -2.0, 3.0], **F64), torch.zeros((), **F64)
    groups = torch.tensor([0, 0, 1])
    for penalty, step, gain in (
        (ElasticNetPenalty(0.0, 1.0), 1.0, 0.5),
        (ElasticNetPenalty(none, 1.0), 3.0, 0.25),
        (L1Penalty(1.0), 0.0, 1.0),
        (L1Penalty(1.0), none, 1.0),
        (GroupL1Penalty(groups, 0.0), 1.0, 1.0),
        (GroupL1Penalty(groups, torch.zeros(2, **F64)), 1.0, 1.0),
        (GroupL1Penalty(groups, 1.0), 0.0, 1.0),
    ):
        leaf = z.clone().requires_grad_()
        torch.testing.assert_close(penalty.prox(z, step), gain * z)
        (by_autograd,) = torch.autograd.grad(penalty.prox(leaf, step), leaf, v)
        jacobian = penalty.jacobian(z, step)
        torch.testing.assert_close(by_autograd, gain * v)
        torch.testing.assert_close(jacobian.apply(v), gain * v)
        assert jacobian.dimension == 3


def test_a_threshold_of_zero_for_one_group_only():
    penalty = GroupL1Penalty(torch.tensor([0, 0, 1]), torch.tensor([0.0, 1.0], **F64))
    z, v = torch.zeros(3, **F64), torch.ones(3, **F64)
    assert penalty.jacobian(z).apply(v).tolist() == [1.0, 1.0, 0.0]
