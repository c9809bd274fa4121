"""Divided sets say what plain ones say: projections, Jacobian products, margins, membership, and derivatives."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.distributed.divided import borders, cases, disagreement, part_of
from tests.distributed.ranks import on_ranks
from tests.distributed.threads import on_threads

from bilevel import sets
from bilevel.distributed import Ranks, RanksFailed, sharded
from bilevel.errors import BilevelError, Incompatible, InvalidInput, InvalidType, NotFinite
from bilevel.testing.oracle import Oracle


def compared(ranks, count, seed):
    wrong = []
    for name, Y, z, generator in cases(count, seed):
        v = torch.randn(z.shape, generator=generator, dtype=torch.float64)
        here = borders(z.shape[-1], ranks.size, generator)[ranks.rank]
        wrong += disagreement(ranks, name, Y, z, here, v)
    return wrong


@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_agree_with_the_plain_sets_to_1e_12(size):
    """Scales 1, 1e9, 1e12 and 1e-9, ties, zeros, batches, empty parts: gloo on loopback."""
    assert on_ranks(compared, size, 10, size) == [[]] * size


@given(
    st.lists(st.one_of(st.integers(-4, 4).map(float), st.floats(-1e6, 1e6)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e4]),
    st.integers(1, 4),
    st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_vector_cut_anywhere(entries, radius, size, seed):
    z = torch.tensor(entries, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    v, parts = torch.randn(z.shape, generator=generator, dtype=torch.float64), borders(len(z), size, generator)
    for Y in (sets.L1Ball(radius), sets.Simplex(radius), sets.L2Ball(radius), sets.Box(-radius, radius)):
        found = on_threads(lambda ranks, Y=Y: disagreement(ranks, f"{Y}", Y, z, parts[ranks.rank], v), size)
        # At a kink, which is where the plain set rounds to, H may be taken on either side.
        kink = float(Y.margin(z)) <= 1e-9 * (1 + float(z.abs().max()))
        assert not [line for each in found for line in each if not kink or "P(z)" in line]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_that_of_the_plain_set(dtype):
    z = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    for Y in (sets.L1Ball(1.0), sets.Simplex(2.0), sets.L2Ball(1.0), sets.Box(0.0, 0.5)):
        parts = on_threads(lambda ranks, Y=Y: sharded(Y, ranks).project(z[slice(ranks.rank, None, 2)]), 2)
        whole = torch.empty_like(z)
        whole[::2], whole[1::2] = parts
        assert whole.dtype == dtype
        assert (whole.double() - Y.project(z).double()).abs().max() <= 4 * torch.finfo(dtype).eps


def test_agrees_with_clarabel():
    import cvxpy

    generator = torch.Generator().manual_seed(5)
    limits = {
        sets.L1Ball(0.8): lambda y: [cvxpy.norm1(y) <= 0.8],
        sets.Simplex(1.5): lambda y: [y >= 0, cvxpy.sum(y) == 1.5],
        sets.L2Ball(0.7): lambda y: [cvxpy.norm2(y) <= 0.7],
    }
    for Y, constraints in limits.items():
        oracle = Oracle(constraints, (9,))
        for _ in range(4):
            z, parts = torch.randn(9, generator=generator, dtype=torch.float64), borders(9, 3, generator)
            found = on_threads(lambda ranks, Y=Y, z=z, at=parts: sharded(Y, ranks).project(z[at[ranks.rank]]), 3)
            assert min(float((answer - torch.cat(found)).norm()) for answer, _ in oracle.answers(z)) <= 1e-7


def derivatives(ranks, Y, z, u, here):
    """First and second derivatives of sum u P(z), by autograd, in z and in the parameters."""
    Y = part_of(Y, here)
    parameters = {name: value.detach().clone().requires_grad_() for name, value in Y.tensor_parameters().items()}
    Y = sharded(Y.replace(**parameters), ranks) if ranks else Y.replace(**parameters)
    point = z[..., here].clone().requires_grad_()
    inputs = [point, *parameters.values()]
    return _both_orders(Y, inputs, u[..., here], u[..., here].roll(1))


def _both_orders(Y, inputs, u, direction):
    first = torch.autograd.grad((Y.project(inputs[0]) * u).sum(), inputs, create_graph=True)
    second = [torch.zeros_like(t) for t in inputs]
    if first[0].requires_grad:
        slope = (first[0] * direction).sum()
        second = torch.autograd.grad(slope, inputs, allow_unused=True, materialize_grads=True)
    product = Y.jacobian(inputs[0]).parameter_vjp(u)
    return [t.detach() for t in (*first, *second, *(product[key] for key in Y.tensor_parameters()))]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: sets.L1Ball(torch.tensor(1.5, dtype=torch.float64)),
        lambda n: sets.Simplex(torch.tensor(2.0, dtype=torch.float64)),
        lambda n: sets.L2Ball(torch.tensor(0.8, dtype=torch.float64), torch.linspace(-1, 1, n, dtype=torch.float64)),
        lambda n: sets.L2Ball(0.8, torch.tensor(0.3, dtype=torch.float64)),
        lambda n: sets.Box(torch.tensor(-0.2, dtype=torch.float64), torch.linspace(0, 1, n, dtype=torch.float64)),
        lambda n: sets.LInfBall(torch.tensor(0.6, dtype=torch.float64)),
    ],
)
def test_derivatives_of_first_and_second_order_are_those_of_the_plain_set(make):
    """In the point, in parameters that all ranks hold, and in those that are divided."""
    generator = torch.Generator().manual_seed(2)
    z, u = (torch.randn(12, generator=generator, dtype=torch.float64) for _ in range(2))
    parts, Y = [slice(0, 7), slice(7, 8), slice(8, 12)], make(12)
    roll = torch.cat([u[part].roll(1) for part in parts])  # the second direction, as each rank makes it
    plain = _plain_derivatives(Y, z, u, roll)
    found = on_threads(lambda ranks: derivatives(ranks, Y, z, u, parts[ranks.rank]), 3)
    for k, expected in enumerate(plain):
        divided = expected.ndim > 0
        mine = torch.cat([each[k] for each in found]) if divided else torch.stack([each[k] for each in found])
        torch.testing.assert_close(mine, expected if divided else expected.expand(3), rtol=1e-12, atol=1e-12)


def _plain_derivatives(Y, z, u, roll):
    parameters = {name: value.detach().clone().requires_grad_() for name, value in Y.tensor_parameters().items()}
    Y, point = Y.replace(**parameters), z.clone().requires_grad_()
    inputs = [point, *parameters.values()]
    return _both_orders(Y, inputs, u, roll)


def test_jacobian_products_are_finite_differences():
    generator = torch.Generator().manual_seed(3)
    z, v = (torch.randn(30, generator=generator, dtype=torch.float64) for _ in range(2))
    parts = borders(30, 2, generator)

    def asked(ranks, Y):
        Y, here = sharded(Y, ranks), parts[ranks.rank]
        ends = [Y.project(z[here] + t * v[here]) for t in (-1e-6, 1e-6)]
        return Y.jacobian(z[here]).apply(v[here]), (ends[1] - ends[0]) / 2e-6

    for Y in (sets.L1Ball(2.0), sets.Simplex(3.0), sets.L2Ball(1.0), sets.Box(-0.5, 0.5)):
        for product, difference in on_threads(asked, 2, Y):
            torch.testing.assert_close(product, difference, rtol=1e-6, atol=1e-7)


def test_a_radius_for_each_row_of_a_batch():
    z = torch.randn(4, 11, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    radius = torch.tensor([0.5, 1.0, 100.0, 0.0], dtype=torch.float64)
    parts = [slice(0, 2), slice(2, 11)]
    for Y in (sets.L1Ball(radius), sets.Simplex(radius), sets.L2Ball(radius)):
        found = on_threads(lambda ranks, Y=Y: sharded(Y, ranks).project(z[:, parts[ranks.rank]]), 2)
        torch.testing.assert_close(torch.cat(found, -1), Y.project(z), rtol=0, atol=1e-12)


def products(ranks, z, parts):
    named = sets.ProductSet({"a": sets.L1Ball(1.0), "b": sets.Box(0.0, 1.0), "c": sets.FreeSpace()})
    sliced = sets.ProductSet([sets.Simplex(1.0), sets.L2Ball(0.5), sets.NonNegative()], sizes=[4, 5, 3])
    here = parts[ranks.rank]
    whole, part = (
        {name: (k + 1) * z for k, name in enumerate("abc")},
        {n: (k + 1) * z[here] for k, n in enumerate("abc")},
    )
    wrong = []
    for Y, at, mine in ((named, whole, part), (sliced, z, z[here])):
        S = sharded(Y, ranks)
        pairs = [
            (S.project(mine), Y.project(at)), (S.jacobian(mine).apply(mine), Y.jacobian(at).apply(at)),
        ]  # fmt: skip
        for found, expected in pairs:
            for name in found if isinstance(found, dict) else [None]:
                u, w = (found, expected) if name is None else (found[name], expected[name])
                if not torch.allclose(u, w[here], rtol=0, atol=1e-12):
                    wrong.append(f"{Y} {name}: {u} instead of {w[here]}")
        rows = [(S.margin(mine), Y.margin(at)), (S.distance(mine), Y.distance(at)),
                (S.jacobian(mine).dimension, Y.jacobian(at).dimension)]  # fmt: skip
        for found, expected in rows:
            for name in found if isinstance(found, dict) else [None]:
                u, w = (found, expected) if name is None else (found[name], expected[name])
                if not torch.allclose(torch.as_tensor(u).double(), torch.as_tensor(w).double(), atol=1e-12):
                    wrong.append(f"{Y} {name}: {u} instead of {w}")
        if bool(S.contains(mine)) or not S.contains(S.project(mine)):
            wrong.append(f"{Y}: {S.contains(mine)}, {S.contains(S.project(mine))}")
    return wrong


def test_products_of_sets_by_name_and_by_slices_that_cross_the_borders_of_parts():
    z = 2 * torch.randn(12, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    for parts in ([slice(0, 12)], [slice(0, 6), slice(6, 12)], [slice(0, 10), slice(10, 10), slice(10, 12)]):
        assert on_threads(products, len(parts), z, parts) == [[]] * len(parts)


def test_random_points_are_parts_of_one_point_of_the_set():
    def drawn(ranks):
        Y = sharded(sets.Simplex(2.0), ranks)
        p = Y.random_point(torch.Generator().manual_seed(4), [3, 0, 5][ranks.rank], dtype=torch.float64)
        return p, bool(Y.contains(p))

    found = on_threads(drawn, 3)
    expected = sets.Simplex(2.0).random_point(torch.Generator().manual_seed(4), 8, dtype=torch.float64)
    assert torch.equal(torch.cat([p for p, _ in found]), expected)
    assert all(inside for _, inside in found)


def told(ranks, kind):
    """The error of each rank when they are given different things."""
    Y, z = sharded(sets.L1Ball(1.0), ranks), torch.ones(3, dtype=torch.float64)
    try:
        if kind == "not finite":
            z[ranks.rank :] = torch.nan if ranks.rank == 1 else 1.0
            Y.project(z)
        if kind == "a list":
            Y.project(z if ranks.rank == 0 else [1.0])
        if kind == "batches":
            Y.project(torch.ones(2 + ranks.rank, 3))
        if kind == "dtypes":
            Y.project(z if ranks.rank == 0 else z.float())
        if kind == "methods":
            (Y.project if ranks.rank == 0 else Y.jacobian)(z)
        if kind == "radii":
            sharded(sets.L1Ball(1.0 + ranks.rank), ranks).project(z)
        if kind == "sets":
            sharded([sets.L1Ball(), sets.Simplex()][ranks.rank], ranks).project(z)
        if kind == "nothing":
            Y.project(z[:0])
        if kind == "derivatives":
            Y.project(z.requires_grad_(ranks.rank == 0))
        if kind == "names":
            product = sharded(sets.ProductSet({"a": sets.L1Ball(), "b": sets.L1Ball()}), ranks)
            product.project({"a": z, "b": z} if ranks.rank == 0 else {"b": z, "a": z})
        if kind == "lengths":
            sharded(sets.ProductSet([sets.L1Ball(), sets.L1Ball()], sizes=[3, 4]), ranks).project(z)
    except BilevelError as error:
        return type(error).__name__, str(error)


ERRORS = {
    "not finite": (NotFinite, "2 of 6 entries of the point are NaN or infinite"),
    "a list": (RanksFailed, "rank 1, sharded(L1Ball(radius=1)): L1Ball takes a tensor, got list"),
    "batches": (RanksFailed, "the batch is [2] on rank 0 and [3] on rank 1"),
    "dtypes": (RanksFailed, "dtype is 'torch.float64' on rank 0 and 'torch.float32' on rank 1"),
    "methods": (RanksFailed, "the method is 'project' on rank 0 and 'jacobian' on rank 1"),
    "radii": (InvalidInput, "radius is 1 on one rank and 2 on another"),
    "sets": (RanksFailed, "the set is 'L1Ball' on rank 0 and 'Simplex' on rank 1"),
    "nothing": (InvalidInput, "no rank has an entry of the point"),
    "derivatives": (RanksFailed, "whether a derivative is asked is True on rank 0 and False on rank 1"),
    "names": (RanksFailed, "the order of entries is ['a', 'b'] on rank 0 and ['b', 'a'] on rank 1"),
    "lengths": (InvalidInput, "takes 7 entries (sizes [3, 4]), and all ranks have 6"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_what_is_wrong_on_one_rank_is_told_on_all(kind):
    error, message = ERRORS[kind]
    for name, text in on_threads(told, 2, kind):
        assert name == error.__name__
        assert message in text


def all_told(ranks):
    return [told(ranks, kind) for kind in ERRORS]


def test_no_process_waits_for_another_that_has_refused():
    for found in on_ranks(all_told, 2):
        assert [name for name, _ in found] == [error.__name__ for error, _ in ERRORS.values()]


def test_sets_that_cannot_be_divided_are_named():
    with pytest.raises(InvalidType, match="sharded takes L1Ball, Simplex, .* got PSDCone"):
        sharded(sets.PSDCone())
    with pytest.raises(InvalidInput, match=r"b.upper is a tensor of shape \(2,\): in slices"):
        sharded(sets.ProductSet({"a": sets.L1Ball(), "b": sets.Box(0.0, torch.ones(2))}, sizes=[3, 2]))
    with pytest.raises(Incompatible, match=r"torch\.func cannot"):
        torch.func.vmap(sharded(sets.L1Ball()).project)(torch.ones(2, 3))


def test_rounds_and_bytes_are_counted():
    ranks = Ranks()
    sharded(sets.Box(0.0, 1.0), ranks).project(torch.ones(5))
    assert ranks.rounds == 1
    sharded(sets.L2Ball(1.0), ranks).project(torch.ones(5))
    assert ranks.rounds == 3
    sharded(sets.L1Ball(1.0), ranks).project(torch.ones(5))
    assert ranks.rounds == 5
    assert ranks.bytes < 20_000
