"""What every vector set makes of its points and parameters: shapes, dtypes, sizes from tiny to huge, radius zero."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from bilevel import sets
from bilevel.errors import EmptySetError, InvalidInputError, InvalidTypeError, NonFiniteError
from bilevel.sets import (
    AffineSet,
    BirkhoffPolytope,
    Box,
    BoxSection,
    CappedSimplex,
    ElasticNetBall,
    FreeSpace,
    GroupL1Ball,
    HalfSpace,
    Intersection,
    L1Ball,
    L2Ball,
    LInfBall,
    MonotoneCone,
    NonNegative,
    Permutahedron,
    Polyhedron,
    ProductSet,
    Scaled,
    SecondOrderCone,
    Simplex,
    Translated,
    WeightedL1Ball,
    from_projection,
)
from bilevel.sets.inequality_set import InequalitySet

PAIR = torch.tensor([0.7, 2.0], dtype=torch.float64)
"""One value for each of two batch elements."""

BATCHED = {
    "CappedSimplex": lambda r: CappedSimplex(1.5, r),
    "BoxSection": lambda r: BoxSection(-1.0, 2.0, torch.tensor([1.0, -2.0, 0.0]).double(), r),
    "WeightedL1Ball": lambda r: WeightedL1Ball(torch.tensor([1.0, 2.0, 3.0]).double(), r),
    "GroupL1Ball": lambda r: GroupL1Ball(torch.tensor([0, 0, 1]), r),
    "ElasticNetBall": lambda r: ElasticNetBall(1.5, r),
    "L2Ball": lambda r: L2Ball(r, 0.1),
    "L1Ball": L1Ball,
    "Simplex": Simplex,
    "LInfBall": LInfBall,
    "Scaled": lambda r: Scaled(L2Ball(), r),
    "Box": lambda r: Box(-1.0, r[:, None] if isinstance(r, torch.Tensor) and r.ndim else r),
    "HalfSpace": lambda r: HalfSpace(torch.tensor([1.0, 1.0, -1.0]).double(), r),
    "ProductSet": lambda r: ProductSet([L1Ball(r), FreeSpace()], sizes=[2, 1]),
}


@pytest.mark.parametrize("make", BATCHED.values(), ids=BATCHED)
def test_one_point_and_a_batch_of_parameters(make):
    """The point stands for as many as there are parameters, whatever is asked of the set."""
    z = torch.tensor([1.3, -2.0, 0.4], dtype=torch.float64)
    v = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    Y, each = make(PAIR), [make(float(value)) for value in PAIR]
    torch.testing.assert_close(Y.project(z), torch.stack([part.project(z) for part in each]))
    torch.testing.assert_close(Y.distance(z), torch.stack([part.distance(z) for part in each]))
    torch.testing.assert_close(
        Y.jacobian(z).apply(v.expand(2, 3)), torch.stack([part.jacobian(z).apply(v) for part in each])
    )
    if Y.margin(z) is not None:
        torch.testing.assert_close(Y.margin(z), torch.stack([part.margin(z) for part in each]))
    assert Y.contains(Y.project(z))
    assert not Y.contains(z + 10)


@pytest.mark.parametrize("make", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("ask", ["project", "jacobian", "margin", "distance", "contains"])
def test_parameters_of_another_shape_are_refused(make, ask):
    Y, z = make(PAIR), torch.zeros(3, 3, dtype=torch.float64)
    if ask == "margin" and Y.margin(z[0]) is None:
        return
    with pytest.raises(
        InvalidInputError, match=r"of shape \(2,.*does not fit points of shape \(3, \d\): give one number"
    ):
        getattr(Y, ask)(z)


@pytest.mark.parametrize(
    "Y",
    [
        Box(torch.zeros(2)),
        HalfSpace(torch.ones(2)),
        AffineSet(torch.ones(1, 2)),
        BoxSection(0.0, 1.0, torch.ones(2)),
        CappedSimplex(torch.ones(2)),
        WeightedL1Ball(torch.ones(2)),
        GroupL1Ball(torch.tensor([0, 1])),
        GroupL1Ball(2),
        L2Ball(1.0, torch.zeros(2)),
        Translated(L2Ball(), torch.zeros(2)),
        ProductSet([FreeSpace()], sizes=[2]),
        Intersection(L2Ball(), Box(torch.zeros(2))),
    ],
    ids=repr,
)
def test_points_of_another_length_are_refused(Y):
    for ask in ("project", "jacobian", "margin", "distance", "contains"):
        if ask == "margin" and isinstance(Y, Intersection):
            continue
        for z in (torch.ones(3), torch.ones(1), torch.ones(4, 3)):
            with pytest.raises(InvalidInputError, match="2"):
                getattr(Y, ask)(z)


def test_bounds_that_do_not_fit_each_other():
    with pytest.raises(InvalidInputError, match=r"lower of shape \(2,\) and upper of shape \(3,\)"):
        Box(torch.zeros(2), torch.ones(3))


@pytest.mark.parametrize("ask", ["project", "jacobian", "margin", "distance", "contains"])
def test_dictionaries_name_the_bad_entry(ask):
    Y = ProductSet({"w": L1Ball(), "b": FreeSpace()})
    good = {"w": torch.ones(3), "b": torch.ones(1)}
    for bad, error, message in (
        ([0.0], InvalidTypeError, "ProductSet, entry 'w': L1Ball takes a tensor, got list: use torch.as_tensor"),
        (torch.ones(3).numpy(), InvalidTypeError, "entry 'w': L1Ball takes a tensor, got ndarray"),
        (torch.ones(3, dtype=torch.int64), InvalidTypeError, "entry 'w': .*int64"),
        (torch.ones(()), InvalidInputError, r"entry 'w': L1Ball takes points of 1 dimension\(s\), got shape \(\)"),
        (torch.ones(2, 0), InvalidInputError, r"entry 'w': .*\(2, 0\) has no entries"),
    ):
        with pytest.raises(error, match=message):
            getattr(Y, ask)({**good, "w": bad})
    for whole in (torch.ones(4), [torch.ones(3), torch.ones(1)]):
        with pytest.raises(InvalidTypeError, match=r"takes a dictionary with entries \['b', 'w'\]"):
            getattr(Y, ask)(whole)
    nan = {**good, "w": torch.tensor([torch.nan, 1.0])}
    if ask == "contains":
        assert Y.contains(nan).reason == "the point has 1 NaN or infinite entries"
    else:
        with pytest.raises(NonFiniteError, match="entry 'w': L1Ball: 1 of 2 entries"):
            getattr(Y, ask)(nan)


def test_function_constraints_check_their_points():
    Y = InequalitySet(lambda y: (y.square().sum() - 1).reshape(1), Box(0.0, 1e-6))
    with pytest.raises(InvalidTypeError, match="Box takes floating-point tensors, got torch.int64"):
        Y.contains(torch.zeros(3, dtype=torch.int64))
    assert not Y.contains(torch.tensor([torch.nan]))
    # Outside by a thousandth of the box, which is little beside the 1 of h.
    assert "leaves its bounds" in Y.contains(torch.tensor([1.001e-6], dtype=torch.float64)).reason
    assert Y.contains(torch.tensor([1e-6], dtype=torch.float64))


POINTS_ALONE = [
    Simplex(0.0),
    L1Ball(0.0),
    WeightedL1Ball(2.0, 0.0),
    GroupL1Ball(1, 0.0),
    L2Ball(0.0),
    LInfBall(0.0),
    CappedSimplex(1.0, 0.0),
    CappedSimplex(0.5, 1.5),
    BoxSection(-1.0, 1.0, torch.tensor([1.0, -2.0, 0.5]), 3.5),
    Box(torch.ones(3), torch.ones(3)),
]


@pytest.mark.parametrize("Y", POINTS_ALONE, ids=repr)
@pytest.mark.parametrize("z", [[1.0, -2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], ids=str)
def test_a_set_of_one_point_has_a_constant_projection(Y, z):
    """H = 0, also at the point itself, and there is no kink anywhere."""
    z = torch.tensor(z)
    assert torch.equal(Y.project(z), Y.project(torch.full((3,), 7.0)))
    assert Y.jacobian(z).apply(torch.tensor([1.0, 2.0, 3.0])).abs().max() == 0
    assert Y.jacobian(z).dimension == 0
    leaf = z.clone().requires_grad_()
    assert torch.autograd.grad(Y.project(leaf).sum(), leaf, allow_unused=True)[0].abs().max() == 0
    assert Y.margin(z) == math.inf


def test_the_elastic_net_ball_of_radius_zero_is_a_point():
    face = ElasticNetBall(1.0, 0.0).jacobian(torch.tensor([0.0, 1.0]))
    assert face.apply(torch.ones(2)).abs().max() == 0
    assert face.dimension == 0


def test_margin_beside_entries_of_weight_zero():
    """The weighted entry is fixed by the total; the others meet their bounds as in a box."""
    Y = BoxSection(0.0, 1.0, torch.tensor([1.0, 0.0, 0.0]), 0.25)
    torch.testing.assert_close(Y.margin(torch.tensor([3.0, 0.6, 7.0])), torch.tensor(0.4))
    at_the_limit = BoxSection(0.0, 1.0, torch.tensor([1.0, 0.0, 0.0]), 1.0)
    torch.testing.assert_close(at_the_limit.margin(torch.tensor([3.0, 0.6, 7.0])), torch.tensor(0.4))
    far_cap = CappedSimplex(1e6, 1e-9)  # a total that is tiny beside the cap is no corner
    torch.testing.assert_close(far_cap.project(torch.zeros(2).double()), torch.full((2,), 5e-10).double())
    no_weight = BoxSection(0.0, 1.0, torch.zeros(2), 0.0)
    torch.testing.assert_close(no_weight.margin(torch.tensor([0.3, 1.5])), torch.tensor(0.3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "Y", [Simplex(), L1Ball(), WeightedL1Ball(1.0), GroupL1Ball(2), L2Ball(), CappedSimplex(0.1)], ids=repr
)
def test_thousands_of_entries_in_half_precision(Y, dtype):
    """Counts beyond 256 do not exist in bfloat16: all sums are taken in float32."""
    z = (1 + 0.01 * torch.randn(2, 4000, generator=torch.Generator().manual_seed(0))).to(dtype)
    v = torch.randn(2, 4000, generator=torch.Generator().manual_seed(1)).to(dtype)
    slack = 2 * torch.finfo(dtype).eps
    p, exact = Y.project(z).double(), Y.project(z.double())
    assert (p - exact).norm() <= slack * exact.norm()
    H, exact = Y.jacobian(z).apply(v).double(), Y.jacobian(z.double()).apply(v.double())
    assert (H - exact).norm() <= slack * v.double().norm()
    margin = Y.margin(z)
    assert margin.dtype == dtype
    torch.testing.assert_close(margin.double(), Y.margin(z.double()), rtol=slack, atol=1e-3)


SCALED = {
    "FreeSpace": lambda s, n: FreeSpace(),
    "NonNegative": lambda s, n: NonNegative(),
    "Box": lambda s, n: Box(-0.5 * s, 0.7 * s),
    "LInfBall": lambda s, n: LInfBall(0.6 * s),
    "L1Ball": lambda s, n: L1Ball(1.3 * s),
    "Simplex": lambda s, n: Simplex(1.3 * s),
    "CappedSimplex": lambda s, n: CappedSimplex(1.5 * s / n, s),
    "BoxSection": lambda s, n: BoxSection(-s, s, torch.linspace(1.0, 2.0, n).double(), 0.4 * s),
    "L2Ball": lambda s, n: L2Ball(1.3 * s, 0.2 * s),
    "WeightedL1Ball": lambda s, n: WeightedL1Ball(torch.linspace(1.0, 2.0, n).double(), 1.3 * s),
    "GroupL1Ball": lambda s, n: GroupL1Ball(torch.arange(n) % 3, 1.3 * s),
    "ElasticNetBall": lambda s, n: ElasticNetBall(0.8 / s, 1.3 * s),
    "SecondOrderCone": lambda s, n: SecondOrderCone(),
    "Translated": lambda s, n: Translated(L1Ball(s), 0.3 * s),
    "Scaled": lambda s, n: Scaled(L1Ball(1.0), s),
    "ProductSet": lambda s, n: ProductSet([Simplex(s)] + [L2Ball(s)] * (n > 1), sizes=[1, n - 1][: 1 + (n > 1)]),
}


@pytest.mark.parametrize("make", SCALED.values(), ids=SCALED)
@hypothesis.given(
    n=st.integers(1, 60),
    seed=st.integers(0, 10_000),
    exponent=st.integers(-12, 12),
    far=st.integers(-3, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@hypothesis.settings(max_examples=40)
def test_scale_is_only_a_unit(make, n, seed, exponent, far, dtype):
    """P_{sY}(s z) = s P_Y(z) for s from 1e-12 to 1e12, H is the same, and the margin s times as large."""
    _check_unit(make, n, seed, 10.0**exponent, 10.0**far, dtype)


@pytest.mark.parametrize("make", SCALED.values(), ids=SCALED)
@pytest.mark.parametrize(
    ("scale", "dtype"),
    [(scale, torch.float32) for scale in (1e-30, 1e20, 1e34)]
    + [(scale, torch.float64) for scale in (1e-250, 1e-150, 1e150, 1e250)],
)
def test_scale_at_the_ends_of_the_dtype(make, scale, dtype):
    """Squares of these numbers do not exist in the dtype."""
    for n in (1, 2, 7):
        _check_unit(make, n, n, scale, 1.0, dtype)


def _check_unit(make, n, seed, scale, far, dtype):
    z = torch.randn(3, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * far
    v = torch.randn(3, n, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(dtype)
    z = (z * scale).to(dtype)
    Y, unit = make(scale, n), make(1.0, n)
    p = Y.project(z)
    assert Y.contains(p), Y.contains(p).reason
    rounding = 200 * torch.finfo(dtype).eps
    size = (z.double() / scale).norm(dim=-1, keepdim=True).clamp_min(1)
    assert ((p.double() / scale - unit.project(z.double() / scale)).abs() <= rounding * size).all()
    margin = unit.margin(z.double() / scale)
    if margin is None:
        margin = torch.full((3,), math.inf)
        smooth = torch.tensor(
            [_is_smooth(unit, row, size_) for row, size_ in zip(z.double() / scale, size, strict=True)]
        )
    else:
        torch.testing.assert_close(
            Y.margin(z).double() / scale, margin, rtol=1e-3, atol=10 * rounding * float(size.max())
        )
        smooth = margin > 100 * rounding * size.squeeze(-1)
    product, exact = Y.jacobian(z).apply(v).double(), unit.jacobian(z.double() / scale).apply(v.double())
    # Where the constraint holds only just, a rounding of the relative size eps decides on which side the point lies.
    assert ((product - exact)[smooth].abs() <= 10 * rounding * v.double().norm()).all()


def _is_smooth(Y, z, size):
    """Without a formula for the margin: H is the same a little way off in many directions."""
    d = torch.randn(20, *z.shape, generator=torch.Generator().manual_seed(0), dtype=z.dtype)
    d = 1e-3 * float(size) * d / d.norm(dim=-1, keepdim=True)
    return bool(
        ((Y.jacobian(z + d).support == Y.jacobian(z).support).all())
        and (Y.contains(z).inside == Y.contains(z + d[0]).inside)
    )


@pytest.mark.parametrize("make", [L1Ball, Simplex, L2Ball, LInfBall, lambda r: CappedSimplex(r, r)])
def test_parameters_beyond_the_dtype_are_refused(make):
    for value in (1e39, torch.tensor(1e39, dtype=torch.float64)):
        for ask in ("project", "jacobian", "margin", "contains"):
            with pytest.raises(
                InvalidInputError, match=r"1e\+39 is too large for points in torch.float32: use z.double"
            ):
                getattr(make(value), ask)(torch.ones(3))
    assert make(1e39).project(torch.ones(3).double()).isfinite().all()


def test_points_beyond_the_dtype_are_refused():
    z = torch.tensor([3e38, -3e38])
    assert NonNegative().project(z)[0] == z[0]  # entries that are not added up may be as large as the dtype allows
    for Y in (L1Ball(), L2Ball(), Simplex(), SecondOrderCone()):
        with pytest.raises(
            InvalidInputError, match=r"entries up to 3e\+38 cannot be added up in torch.float32: use z.dou"
        ):
            Y.project(z)
        assert Y.project(z.double()).isfinite().all()
    with pytest.raises(InvalidInputError, match="divided by the factor 1e-300 overflows torch.float64"):
        Scaled(L2Ball(), 1e-300).project(torch.tensor([1e20]).double())
    assert Scaled(L2Ball(), 1e-30).project(torch.tensor([1e20])) == torch.tensor([1e-30])
    with pytest.raises(InvalidInputError, match=r"gamma = 1e\+200 is too large for a point or a radius of size 1"):
        ElasticNetBall(1e200).project(torch.ones(2))


def test_answers_beyond_float16_are_refused():
    with pytest.raises(InvalidInputError, match=r"Simplex: .* up to 1e\+05, too large for torch.float16: use z.float"):
        Simplex(1e5).project(torch.ones(1, dtype=torch.float16))
    assert L1Ball(1e5).project(torch.ones(1, dtype=torch.float16)) == 1
    assert Box(0.0, 3e4).project(torch.tensor([6e4], dtype=torch.float16)) == 3e4


def test_weights_of_any_size():
    """Only the ratio of weight and total matters."""
    z, weight = torch.tensor([3.0, -1.0, 2.0]), torch.tensor([1.0, 2.0, 0.5])
    for factor in (1e-30, 1e30):
        expected = WeightedL1Ball(weight, 1.5)
        stretched = WeightedL1Ball(weight * factor, 1.5 * factor)
        torch.testing.assert_close(stretched.project(z), expected.project(z))
        torch.testing.assert_close(stretched.margin(z), expected.margin(z))
        assert stretched.contains(stretched.project(z))
        expected = BoxSection(-1.0, 1.0, weight, 1.5)
        stretched = BoxSection(-1.0, 1.0, weight * factor, 1.5 * factor)
        torch.testing.assert_close(stretched.project(z), expected.project(z))
        torch.testing.assert_close(stretched.margin(z), expected.margin(z))


def test_free_space_gives_a_copy():
    z = {"a": torch.ones(2), "b": torch.tensor(1.0)}
    for entry in FreeSpace().project(z).values():
        entry.zero_()
    assert z["a"].tolist() == [1.0, 1.0]
    assert z["b"] == 1
    assert FreeSpace().margin(z) == {"a": math.inf, "b": math.inf}
    assert FreeSpace().distance(z) == {"a": 0.0, "b": 0.0}
    point = FreeSpace().random_point(torch.Generator().manual_seed(0), {"a": (4, 2)})
    assert point["a"].shape == (4, 2)


def test_a_large_entry_does_not_hide_a_broken_bound():
    far = torch.tensor([1e12, -1.0], dtype=torch.float64)
    assert not NonNegative().contains(far)
    assert not Box(0.0, torch.tensor([torch.inf, 1.0])).contains(-far.flip(0))
    assert not BoxSection(0.0, torch.inf, 1.0, 1e12).contains(far + torch.tensor([1.0, 0.0]))
    assert not L2Ball(1.0, torch.tensor([1e12, 0.0])).contains(far + torch.tensor([0.0, 2.1]))
    assert not Translated(L1Ball(1.0), torch.tensor([1e12, 0.0])).contains(far + torch.tensor([0.0, 2.1]))
    # The rounding of arithmetic that mixes entries is forgiven, and that of the bound itself.
    assert NonNegative().contains(torch.tensor([1.0, -1e-16], dtype=torch.float64))
    assert Box(0.0, 1e12).contains(torch.tensor([1e12 + 0.1, 1.0], dtype=torch.float64))


def test_polyhedral_sets_say_so():
    ones = torch.ones(2)
    polyhedra = [FreeSpace(), NonNegative(), Box(0.0, 1.0), LInfBall(), L1Ball(), WeightedL1Ball(ones), Simplex()]
    polyhedra += [CappedSimplex(), BoxSection(), HalfSpace(ones), sets.Hyperplane(ones), AffineSet(ones[None])]
    polyhedra += [Polyhedron(ones[None], ones[:1]), MonotoneCone(), Permutahedron(ones), BirkhoffPolytope(2)]
    polyhedra += [sets.TransportPolytope(ones, ones)]
    round_sets = [L2Ball(), GroupL1Ball(2), ElasticNetBall(), SecondOrderCone(), sets.PSDCone(), sets.NuclearNormBall()]
    round_sets += [sets.SpectralNormBall(), from_projection(torch.relu)]
    assert all(Y.polyhedral for Y in polyhedra)
    assert not any(Y.polyhedral for Y in round_sets)
    for wrap in (
        lambda Y: Translated(Y, 1.0),
        lambda Y: Scaled(Y, 2.0),
        lambda Y: Intersection(Simplex(), Y),
        lambda Y: ProductSet({"a": Simplex(), "b": Y}),
    ):
        assert wrap(L1Ball()).polyhedral
        assert not wrap(L2Ball()).polyhedral


def test_a_function_that_is_no_projection_is_found_out():
    """x/2 moves its own answers; the check costs one more call, at the first point that moves."""
    halves = from_projection(lambda z: z / 2, name="halve")
    assert halves.contains(torch.zeros(2))
    with pytest.raises(
        InvalidInputError, match="halve is no projection: applied to its own result it moves the point by 0.5"
    ):
        halves.project(torch.tensor([2.0, 0.0]))
    calls = []

    def relu(z):
        calls.append(1)
        return z.relu()

    Y = from_projection(relu)
    Y.project(torch.ones(2))
    assert len(calls) == 1
    Y.project(-torch.ones(2))
    assert len(calls) == 3
    Y.project(-torch.ones(2))
    assert len(calls) == 4


def test_an_identity_function_does_not_share_memory():
    z = torch.ones(2)
    from_projection(lambda z: z).project(z).zero_()
    assert z.sum() == 2


INDUCTOR = pytest.param("inductor", marks=pytest.mark.slow)  # it needs a C++ compiler


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
@pytest.mark.parametrize("Y", [L1Ball(), Simplex(), Box(-0.5, 0.5), L2Ball()], ids=repr)
def test_compiled_values_and_gradients(Y, backend):
    """The slow tests of the contract suite compile every set."""
    torch._dynamo.reset()
    compiled = torch.compile(Y.project, backend=backend, fullgraph=True)
    z = torch.randn(16, 40, generator=torch.Generator().manual_seed(0))
    leaf, other = z.clone().requires_grad_(), z.clone().requires_grad_()
    torch.testing.assert_close(compiled(z), Y.project(z))
    (grad,) = torch.autograd.grad(compiled(leaf).square().sum(), leaf)
    torch.testing.assert_close(grad, torch.autograd.grad(Y.project(other).square().sum(), other)[0])


ONES = torch.ones(3)
MADE_UNDER_VMAP = {
    "L1Ball": L1Ball,
    "Simplex": Simplex,
    "L2Ball": L2Ball,
    "LInfBall": LInfBall,
    "WeightedL1Ball": lambda r: WeightedL1Ball(ONES, r),
    "GroupL1Ball": lambda r: GroupL1Ball(3, r),
    "ElasticNetBall": lambda r: ElasticNetBall(1.0, r),
    "Scaled": lambda r: Scaled(L2Ball(), r),
    "ProductSet": lambda r: ProductSet([L1Ball(r), L2Ball()], sizes=[2, 1]),
    "Box, upper below lower": lambda r: Box(0.0, r),
    "BoxSection, total out of reach": lambda r: BoxSection(0.0, 1.0, ONES, r),
    "CappedSimplex, cap too small": lambda r: CappedSimplex(r.abs() * (r > 0), 1.0),
    "HalfSpace, normal zero": lambda r: HalfSpace((r > 0) * ONES, 0.5),
    "AffineSet, contradicting rows": lambda r: AffineSet(torch.ones(2, 3), torch.stack([r, torch.ones(())])),
}


@pytest.mark.parametrize("make", MADE_UNDER_VMAP.values(), ids=MADE_UNDER_VMAP)
def test_an_empty_set_made_under_vmap_gives_nan(make):
    """Values cannot be looked at there: radius -1 gives NaN, radius 1 beside it what it gives alone."""
    radii, z = torch.tensor([-1.0, 1.0]), torch.tensor([3.0, -1.0, 0.5])
    for ask in (lambda r: make(r).project(z), lambda r: make(r).jacobian(z).apply(z), lambda r: make(r).distance(z)):
        answers = torch.func.vmap(ask)(radii)
        assert answers[0].isnan().all()
        torch.testing.assert_close(answers[1], ask(radii[1]))


def test_matrix_sets_made_under_vmap():
    radii, z = torch.tensor([-1.0, 1.0]), torch.tensor([[3.0, -1.0, 0.5], [0.0, 2.0, 1.0]])
    for make in (sets.NuclearNormBall, sets.SpectralNormBall):
        answers = torch.func.vmap(lambda r, make=make: make(r).project(z))(radii)
        assert answers[0].isnan().all()
        torch.testing.assert_close(answers[1], make(1.0).project(z))
    plans = torch.func.vmap(lambda r: sets.TransportPolytope(r.expand(2), ONES).project(z))
    answers = plans(torch.tensor([-1.0, 3.0, torch.nan, 1.5]))  # three columns of 1 need two rows of 1.5
    assert answers[:3].isnan().all()
    torch.testing.assert_close(answers[3], sets.TransportPolytope(torch.full((2,), 1.5), ONES).project(z))


def test_a_function_without_a_graph_is_refused():
    """A derivative of zero would be wrong; values alone are fine."""
    Y = from_projection(lambda z: torch.from_numpy(z.detach().numpy().clip(0)), name="clip")
    z = torch.tensor([-1.0, 2.0])
    assert Y.project(z).tolist() == [0.0, 2.0]
    for ask in (Y.jacobian, lambda z: Y.project(z.requires_grad_())):
        with pytest.raises(InvalidInputError, match="clip returns a tensor without a graph"):
            ask(z.clone())


def test_random_points_say_what_they_take():
    generator, both = torch.Generator().manual_seed(0), ProductSet({"a": L1Ball(), "b": Simplex()})
    with pytest.raises(
        InvalidTypeError, match=r"L1Ball.random_point takes a torch.Generator, got 0: use torch.Generator"
    ):
        L1Ball().random_point(0, 3)
    with pytest.raises(InvalidTypeError, match=r"random_point takes sizes, as in .*, got \(\(3,\),\)"):
        L1Ball().random_point(generator, (3,))
    for shape in ((3,), (3, 4), ({"a": (3,)},)):
        with pytest.raises(InvalidTypeError, match=r"a dictionary of shapes like {'a': \(3,\), 'b': \(3,\)}, got"):
            both.random_point(generator, *shape)
    point = both.random_point(generator, {"a": 3, "b": (4, 2)})
    assert point["a"].shape == (3,)
    assert point["b"].shape == (4, 2)


def test_text_arrays_and_fractions_are_refused():
    with pytest.raises(InvalidTypeError, match="radius must be a number or a tensor, got '1'"):
        L1Ball("1")
    for radius in ([1.0], np.ones(1)):
        with pytest.raises(
            InvalidTypeError, match=r"radius must be a number or a tensor, got .*: use torch.as_tensor\("
        ):
            L1Ball(radius)
        with pytest.raises(
            InvalidTypeError, match=r"upper must be a number or a tensor, got .*: use torch.as_tensor\("
        ):
            Box(0.0, radius)
    for G, h in ((np.ones((1, 2)), torch.ones(1)), (torch.ones(1, 2), [1.0])):
        with pytest.raises(InvalidInputError, match=r"use torch.as_tensor\("):
            Polyhedron(G, h)
    with pytest.raises(InvalidTypeError, match="size must be an integer, got 2.5"):
        BirkhoffPolytope(2.5)
    with pytest.raises(InvalidInputError, match="tol must be at least 0, got -1"):
        L1Ball().contains(torch.zeros(2), tol=-1)
    changed = L1Ball()
    changed.radius = -1.0
    with pytest.raises(EmptySetError, match="radius must be at least 0, got -1"):
        changed.project(torch.ones(3))


def test_reasons_name_the_point_and_the_sum():
    y = torch.tensor([[0.1, 0.2], [3.0, 0.0], [1.0, 1.0]])
    assert L1Ball().contains(y).reason == "the l1 norm exceeds the radius 1 (by 2 at point 1 of the batch)"
    assert "at point (1, 0) of the batch" in L1Ball().contains(y[:, None]).reason
    assert L1Ball().contains(y[1]).reason == "the l1 norm exceeds the radius 1 (by 2)"
    assert "the sum is not the total 1" in CappedSimplex().contains(y[0]).reason
    with pytest.raises(EmptySetError, match="the sum lies between 0 and 0.2"):
        CappedSimplex(0.1).project(y[0])


def test_batches_and_sizes_that_do_not_fit_are_refused():
    z, pair, rows = torch.zeros(3, 2), torch.ones(2, 2), torch.eye(2)
    for Y in (Permutahedron(pair), AffineSet(rows, pair), Polyhedron(rows, pair)):
        for ask in (Y.project, Y.jacobian, Y.contains):
            with pytest.raises(InvalidInputError, match=r"of shape \(2, 2\) does not fit points of shape \(3, 2\)"):
                ask(z)
            with pytest.raises(InvalidInputError, match=r"takes points of shape \(2,\), .*, got \(5,\)"):
                ask(torch.zeros(5))
    plans = sets.TransportPolytope(pair, pair)
    with pytest.raises(InvalidInputError, match=r"row_sums of shape \(2, 2\) does not fit points of shape \(3, 2, 2\)"):
        plans.contains(torch.zeros(3, 2, 2))
    with pytest.raises(InvalidInputError, match=r"takes points of shape \(2, 2\)"):
        plans.contains(z)
    with pytest.raises(InvalidInputError, match=r"h of shape \(3, 2\) does not fit"):
        Polyhedron(rows, torch.ones(3, 2), rows, pair)
    with pytest.raises(InvalidInputError, match=r"row_sums of shape \(3, 2\) does not fit"):
        sets.TransportPolytope(torch.ones(3, 2), pair)
    with pytest.raises(InvalidInputError, match="sizes must be 1 positive integers"):
        ProductSet([L1Ball()], sizes=[2.5])


def test_only_a_set_without_a_point_is_called_empty():
    for make in (
        lambda: Scaled(L1Ball(), 0.0),
        lambda: WeightedL1Ball(-1.0),
        lambda: ElasticNetBall(-1.0),
        lambda: sets.L1Penalty(-1.0),
        lambda: sets.L1Penalty().prox(torch.ones(2), -1.0),
    ):
        with pytest.raises(InvalidInputError, match="must be") as found:
            make()
        assert found.type is InvalidInputError
