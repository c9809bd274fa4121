"""Calls of public functions with whatever people may pass: `calls()` is a hypothesis strategy of calls with a check.

A call either returns a correct, finite answer or raises an error of ours, within a second. What "correct" means is a
closed form, or the condition of optimality.
"""

from __future__ import annotations

import math
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import bilevel
from bilevel import sets


@dataclass(frozen=True)
class Call:
    """What is called, for messages, and the call itself with the check of its answer."""

    text: str
    run: Callable[[], None]

    def __repr__(self) -> str:
        return self.text


# --- ingredients ------------------------------------------------------------------------------------------------------

DTYPES = [torch.float64] * 3 + [torch.float32] * 2 + [torch.float16, torch.bfloat16]
DTYPES += [torch.int64, torch.bool, torch.complex64]
FILLS = ["normal", "normal", "normal", "ties", "zero", "huge", "tiny", "mixed", "nan", "infinite", "largest"]
LAYOUTS = ["plain"] * 3 + ["transposed", "strided", "expanded", "flipped", "requires_grad", "graph", "read-only"]
SHAPES = [(), (1,), (2,), (3,), (3,), (5,), (2, 3), (3, 3), (4, 2, 3), (0,), (2, 0), (1, 1, 1, 2)]
ODD = [None, "a", 3, -1, 0.5, math.nan, math.inf, [1.0, 2.0], (), {}, True, 1 << 70, b"x", print, np.ones(3)]
NUMBERS = [1.0, 0.5, 1, 2, 3, 10, 1e-3, 0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, 1e300, 1e-300, 1 << 70, True,
           None, "a", "auto", [1.0], np.float64(2)]  # fmt: skip


@st.composite
def tensors(draw: Any, shape: tuple[int, ...] | None = None, *, plain: bool = False) -> Tensor:
    """Tensors of every kind: shapes, dtypes, magnitudes, layouts and devices."""
    shape = draw(st.sampled_from(SHAPES)) if shape is None else shape
    dtype = torch.float64 if plain else draw(st.sampled_from(DTYPES))
    fill = draw(st.sampled_from(FILLS[:5] if plain else FILLS))
    layout = "plain" if plain else draw(st.sampled_from(LAYOUTS))
    device = "cpu" if plain else draw(st.sampled_from(["cpu"] * 19 + ["meta"]))
    seed = draw(st.integers(0, 1000))
    value = _filled(shape, fill, seed)
    if dtype in (torch.int64, torch.bool):
        value = value.nan_to_num(0, 9, -9).clamp(-9, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of read-only memory and of imaginary parts
        return _laid_out(value.to(dtype), layout).to(device)


def _filled(shape: tuple[int, ...], fill: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator, dtype=torch.float64)
    place = torch.rand(shape, generator=generator) < 0.3
    return {
        "normal": lambda: value,
        "ties": lambda: value.round(),
        "zero": lambda: torch.zeros_like(value),
        "huge": lambda: value * 1e30,
        "largest": lambda: value * 1e308,
        "tiny": lambda: value * 1e-310,
        "mixed": lambda: value * 10.0 ** (40 * value),
        "nan": lambda: torch.where(place, math.nan, value),
        "infinite": lambda: torch.where(place, math.inf, value),
    }[fill]()


def _laid_out(value: Tensor, layout: str) -> Tensor:
    if layout == "transposed" and value.ndim >= 2:
        return value.mT.contiguous().mT
    if layout == "strided" and value.ndim:
        return value.repeat_interleave(2, -1)[..., ::2]
    if layout == "expanded" and value.ndim and value.shape[0]:
        return value[:1].expand_as(value)
    if layout == "flipped" and value.ndim:
        return value.flip(-1)
    if layout in ("requires_grad", "graph") and value.is_floating_point():
        leaf = value.clone().requires_grad_()
        return leaf if layout == "requires_grad" else leaf * 1.0
    if layout == "read-only" and value.dtype in (torch.float32, torch.float64):
        array = value.numpy().copy()
        array.flags.writeable = False
        return torch.from_numpy(array)
    return value


def anything(shape: tuple[int, ...] | None = None) -> Any:
    """Mostly tensors, of the given shape or any other; sometimes something else."""
    return st.one_of(tensors(shape), tensors(shape), tensors(shape), tensors(shape), tensors(), st.sampled_from(ODD))


def number() -> Any:
    """A number that may do, or not."""
    return st.one_of(st.just(1.0), st.just(2.0), st.sampled_from(NUMBERS), tensors())


def good_number() -> Any:
    return st.sampled_from([1.0, 0.5, 2.0, 1e-3, 100.0])


# --- sets -------------------------------------------------------------------------------------------------------------


def _second(kind: Any, base: Any) -> Any:
    """A set made from another set and one parameter."""
    return lambda value: kind(base, value)


PLENTY = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
VECTORS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "FreeSpace": lambda n, v: (sets.FreeSpace,),
    "NonNegative": lambda n, v: (sets.NonNegative,),
    "Box": lambda n, v: (sets.Box, v(), v()),
    "Box of numbers": lambda n, v: (sets.Box, -1.0, n()),
    "LInfBall": lambda n, v: (sets.LInfBall, n()),
    "L1Ball": lambda n, v: (sets.L1Ball, n()),
    "WeightedL1Ball": lambda n, v: (sets.WeightedL1Ball, v(), n()),
    "GroupL1Ball": lambda n, v: (sets.GroupL1Ball, torch.tensor([0, 0, 1]), n()),
    "ElasticNetBall": lambda n, v: (sets.ElasticNetBall, n(), n()),
    "L2Ball": lambda n, v: (sets.L2Ball, n(), v()),
    "Simplex": lambda n, v: (sets.Simplex, n()),
    "CappedSimplex": lambda n, v: (sets.CappedSimplex, n(), n()),
    "BoxSection": lambda n, v: (sets.BoxSection, -1.0, 1.0, v(), n()),
    "Hyperplane": lambda n, v: (sets.Hyperplane, v(), n()),
    "HalfSpace": lambda n, v: (sets.HalfSpace, v(), n()),
    "AffineSet": lambda n, v: (sets.AffineSet, v((2, 3)), v((2,))),
    "Polyhedron": lambda n, v: (sets.Polyhedron, v((4, 3)), v((4,))),
    "SecondOrderCone": lambda n, v: (sets.SecondOrderCone,),
    "MonotoneCone": lambda n, v: (sets.MonotoneCone,),
    "Permutahedron": lambda n, v: (sets.Permutahedron, v()),
    "Translated": lambda n, v: (_second(sets.Translated, sets.L1Ball(1.0)), v()),
    "Scaled": lambda n, v: (_second(sets.Scaled, sets.L2Ball(1.0)), n()),
    "Intersection": lambda n, v: (lambda r: sets.Intersection(sets.L1Ball(r), sets.Box(-1.0, 0.5)), n()),
}
MATRICES: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "PSDCone": lambda n, v: (sets.PSDCone,),
    "NuclearNormBall": lambda n, v: (sets.NuclearNormBall, n()),
    "SpectralNormBall": lambda n, v: (sets.SpectralNormBall, n()),
    "TransportPolytope": lambda n, v: (sets.TransportPolytope, v(), v()),
    "TransportPolytope of plenty": lambda n, v: (sets.TransportPolytope, PLENTY, PLENTY),
    "BirkhoffPolytope": lambda n, v: (sets.BirkhoffPolytope, 3),
    "Flattened": lambda n, v: (lambda r: sets.Flattened(sets.L1Ball(r), 2), n()),
}
METHODS = ["project", "project", "jacobian", "contains", "margin", "distance"]


@st.composite
def set_calls(draw: Any) -> Call:
    """A set with good or bad parameters, and one of its methods with a good or bad point."""
    name, method = draw(st.sampled_from([*VECTORS, *MATRICES])), draw(st.sampled_from(METHODS))
    good = draw(st.booleans())
    make, *parameters = {**VECTORS, **MATRICES}[name](
        lambda: draw(good_number() if good else number()),
        lambda shape=(3,): draw(tensors(shape, plain=True) if good else anything(shape)),
    )
    event = (3,) if name in VECTORS else (3, 3)
    shape = (*draw(st.sampled_from([(), (), (2,), (0,), (2, 1)])), *event)
    z, other, direction = draw(anything(shape)), draw(tensors(event, plain=True)), draw(tensors(shape, plain=True))

    def run() -> None:
        made = make(*parameters)
        answer = getattr(made, method)(z)
        if isinstance(z, dict):
            return  # the empty one, which FreeSpace takes
        if method == "project":
            check_projection(made, z, answer, other)
        elif method == "jacobian" and z.shape == direction.shape:
            check_face(answer, z, direction)
        elif method == "contains":
            assert isinstance(answer.inside, bool)
        elif method in ("margin", "distance") and answer is not None:
            assert not bool(torch.isnan(answer).any())

    return Call(f"{name}({', '.join(map(shown, parameters))}).{method}({shown(z)})", run)


def check_projection(made: Any, z: Tensor, y: Tensor, other: Tensor) -> None:
    """<z - y, p - y> <= 0 for every p in Y, here the projection of another point; y in Y; of the kind of z."""
    assert y.dtype == z.dtype
    assert bool(torch.isfinite(y).all()), y
    if y.numel() == 0:
        return
    assert made.contains(y.detach()), made.contains(y.detach()).reason
    if z.shape[z.ndim - other.ndim :] != other.shape:
        return
    try:
        p = made.project(other.to(z.dtype)).detach().double()
    except bilevel.BilevelError:
        return
    z, y, tol = z.detach().double(), y.detach().double(), {torch.float64: 1e-5, torch.float32: 1e-4}.get(z.dtype, 0.1)
    scale = max(float(part.abs().max()) for part in (z, y, p, torch.tensor(1e-300, dtype=torch.float64)))
    z, y, p = z / scale, y / scale, p / scale
    dims = tuple(range(-made.event_ndim, 0))
    assert float(((z - y) * (p - y)).sum(dims).max()) <= tol


def check_face(face: Any, z: Tensor, v: Tensor) -> None:
    """0 <= <v, H v> <= |v|^2."""
    v = v.to(z.dtype)
    product = face.apply(v).detach()
    assert bool(torch.isfinite(product).all())
    inner, square = float((v.double() * product.double()).sum()), float(v.double().square().sum())
    tol = 1e-6 if z.dtype == torch.float64 else 0.1
    assert -tol * square - 1e-30 <= inner <= (1 + tol) * square + 1e-30


# --- problems ---------------------------------------------------------------------------------------------------------
# g = |y - x|^2 / 2 over [-1, 1]^n has y*(x) = clip(x, -1, 1), and f = |y - 2|^2 / 2 the gradient y* - 2 where |x| < 1.


def clipped() -> bilevel.Problem:
    return bilevel.Problem(
        upper=lambda x, y: (y - 2).square().sum() / 2,
        lower=lambda x, y: (y - x).square().sum() / 2,
        constraint=sets.Box(-1.0, 1.0),
    )


@st.composite
def problem_calls(draw: Any) -> Call:
    """One of the functions of a problem, with a good or bad x and y."""
    name = draw(
        st.sampled_from(["solve_lower", "upper_value", "lower_residual", "hypergradient", "argmin", "minimize"])
    )
    shape = draw(st.sampled_from([(3,), (3,), (), (2, 3)]))
    x, y = draw(anything(shape)), draw(st.one_of(tensors(shape, plain=True), anything(shape)))
    if isinstance(y, Tensor) and y.is_floating_point() and draw(st.booleans()):
        y = y.detach().clamp(-1, 1)
    options = draw(problem_options(name))

    def run() -> None:
        answer = getattr(bilevel, name)(clipped(), x, y, **options)
        CHECKS[name](x, y, answer)

    return Call(f"{name}(problem, {shown(x)}, {shown(y)}, {options})", run)


@st.composite
def problem_options(draw: Any, name: str) -> dict[str, Any]:
    """Some of the settings of a function; a run is short."""
    if name == "minimize":
        kept = {"steps": draw(st.sampled_from([1, 2, 3, 3, 3, 0, -1, 2.5, "a", True]))}
        odd = {
            "seed": [0, 1, 1 << 70, -1, 0.5, None, "a", True],
            "output": ["last", "best", "sampled", "all", 3],
            "tol": [None, 1e-3, 0, -1, math.nan, "a", math.inf, torch.ones(1)],
            "evaluate_every": [1, 2, 0, "a", 1.0],
            "resume": [None, None, 3, "missing", b"a", []],
            "callbacks": [(), (), None, 3, ["a"]],
            "delta": [None, 0.1, 0, -1, math.nan, "a", math.inf, True],
            "solver": [None, 3, bilevel.DMLCBO, "a", bilevel.Approx()],
            "checkpoint": [None, 3, b"a", "", ".", "missing/run", "a\0b", "a" * 5000],
        }
        more = {key: st.sampled_from(values) for key, values in odd.items()}
    elif name in ("hypergradient", "lower_residual"):
        kept, more = {}, {}
    else:
        kept, more = {}, {"tol": number(), "max_steps": st.sampled_from([1, 10, 1000, 0, -1, "a", None, 2.5])}
    chosen = draw(st.sets(st.sampled_from(sorted(more)), max_size=2)) if more else set()
    return {**kept, **{key: draw(more[key]) for key in sorted(chosen)}}


def _finite(*values: Tensor) -> None:
    for value in values:
        assert bool(torch.isfinite(value).all()), value


def check_lower(x: Any, y: Any, answer: Any) -> None:
    _finite(answer.y)
    if answer.converged and answer.residual < 1e-3 and x.shape == y.shape:
        error = (answer.y.double() - x.detach().double().clamp(-1, 1)).abs().max()
        assert float(error) <= 1e-2 + 2 * answer.residual


def check_value(x: Any, y: Any, answer: Tensor) -> None:
    _finite(answer)


def check_residual(x: Any, y: Any, answer: float) -> None:
    """|y - clip(x)| for float64 of moderate size."""
    assert math.isfinite(answer)
    if x.shape != y.shape:
        return
    expected = float((y.detach().double() - x.detach().double().clamp(-1, 1)).norm())
    assert abs(answer - expected) <= 0.05 * (1 + expected)


def check_gradient(x: Any, y: Any, answer: Tensor) -> None:
    """At a y with |y - (y - x) clipped| inside the box: (y - 2) where |x| < 1, 0 where |x| > 1."""
    _finite(answer)
    if x.shape != y.shape:
        return
    inner, there = x.detach().double(), y.detach().double()
    expected = torch.where(inner.abs() < 1, there - 2, 0.0)
    known = (inner.abs() - 1).abs() > 0.05
    assert bool(((answer.double() - expected).abs() <= 0.05 * (1 + expected.abs()))[known].all())


def check_argmin(x: Any, y: Any, answer: Tensor) -> None:
    _finite(answer)
    assert bool((answer.detach().abs() <= 1 + 1e-2).all())


def check_solution(x: Any, y: Any, answer: Any) -> None:
    _finite(answer.x, answer.y)
    assert bool((answer.y.abs() <= 1 + 1e-2).all())


CHECKS: dict[str, Callable[[Any, Any, Any], None]] = {
    "solve_lower": check_lower,
    "upper_value": check_value,
    "lower_residual": check_residual,
    "hypergradient": check_gradient,
    "argmin": check_argmin,
    "minimize": check_solution,
}


# --- settings ---------------------------------------------------------------------------------------------------------


def published(gamma: Any = 0.1, tau: Any = 0.1) -> Any:
    return bilevel.DMLCBO.as_published(gamma, tau)


def checkpoint(path: Any = "run.safetensors", every: Any = None, about: Any = ()) -> Any:
    return bilevel.Checkpoint(path, every=every, about=about or {})


def classes_with_settings() -> list[Any]:
    from bilevel.hypergradients import LinearSolve, Neumann, Perturbed, TwoPoint, Unrolled
    from bilevel.solvers.base import solver_classes

    methods = [LinearSolve, Neumann, Unrolled, Perturbed, TwoPoint]
    return [*solver_classes(), *methods, bilevel.Seeds, bilevel.run.Budget, checkpoint, published, bilevel.DMLCBO]


@st.composite
def setting_calls(draw: Any) -> Call:
    """A solver, estimator or other settings object with odd settings; a solver then takes one step."""
    import inspect

    made = draw(st.sampled_from(classes_with_settings()))
    names = [name for name in inspect.signature(made).parameters if name not in ("args", "kwargs")]
    chosen = sorted(draw(st.sets(st.sampled_from(names), min_size=1, max_size=2)))
    values = {name: draw(st.sampled_from(NUMBERS)) for name in chosen}

    def run() -> None:
        answer = made(**values)
        if hasattr(answer, "init"):
            point = torch.full((3,), 0.5, dtype=torch.float64)
            check_solution(point, point, bilevel.minimize(clipped(), point, point, solver=answer, steps=1))

    return Call(f"{getattr(made, '__name__', made)}({values})", run)


# --- diagnostics ------------------------------------------------------------------------------------------------------


@st.composite
def diagnostic_calls(draw: Any) -> Call:
    """One of the diagnostics, with a good or bad point and settings."""
    name = draw(st.sampled_from(sorted(DIAGNOSTICS)))
    shape = draw(st.sampled_from([(3,), (3,), (2,), (), (2, 3)]))
    x = draw(st.one_of(tensors(shape, plain=True), anything(shape)))
    y = draw(st.one_of(tensors(shape, plain=True), tensors(shape, plain=True), anything(shape)))
    if isinstance(y, Tensor) and y.is_floating_point() and draw(st.booleans()):
        y = y.detach().clamp(-1, 1)
    made = draw(st.sampled_from([clipped] * 9 + [lambda: None, lambda: 3, lambda: bilevel.Problem]))
    kept, more, check = DIAGNOSTICS[name]
    more = {**more, "seed": [0, 1, 1 << 70, -1, 0.5, None, "a", True]}
    chosen = sorted(draw(st.sets(st.sampled_from(sorted(more)), max_size=2)))
    options = {**kept, **{key: draw(st.sampled_from(more[key])) for key in chosen}}

    def run() -> None:
        check(x, y, getattr(bilevel.diagnostics, name)(made(), x, y=y, **options), options)

    return Call(f"{name}({made()}, {shown(x)}, y={shown(y)}, {options})", run)


def _known(x: Any, margin: float) -> bool:
    """Whether the gradient of F at x and within the margin is known: float64 of moderate size, away from kinks."""
    inner = x.detach().abs()
    return x.dtype == torch.float64 and bool(((inner - 1).abs() > margin).all()) and 1e-3 < float(inner.max()) < 100


def check_verdict(x: Any, y: Any, answer: Any, options: Any) -> None:
    """LinearSolve is right; F = |clip(x) - 2|^2 / 2 is not constant where some |x| < 1."""
    assert answer.cause.text
    assert str(answer)
    usual = not {"tol", "method", "solver", "gradient"} & set(options)
    if usual and x.shape == y.shape and _known(x, 0.05) and bool((x.abs() < 1).any()) and bool((y.abs() <= 1).all()):
        assert answer.ok or answer.cause.name == "UNSOLVED", answer  # the y that was given is none


def check_certificate(x: Any, y: Any, answer: Any, options: Any) -> None:
    """eps <= |h| at the point; away from kinks all of it is (y* - 2) where |x| < 1."""
    low, high = answer.interval
    assert 0 <= low <= high == answer.eps <= answer.gradient_norm * (1 + 1e-6) + 1e-9
    if x.shape == y.shape and _known(x, 2 * options["delta"] + 0.05):
        inner = x.detach()
        truth = float(torch.where(inner.abs() < 1, inner - 2, 0.0).norm())
        assert abs(answer.eps - truth) <= 1e-3 * (1 + truth)


def check_goldstein(x: Any, y: Any, answer: Any, options: Any) -> None:
    """Gradients of F within r differ by at most r from that at x, away from kinks."""
    assert 0 <= answer.value < math.inf
    if x.shape == y.shape and _known(x, 2 * options["radius"]):
        inner = x.detach()
        truth = float(torch.where(inner.abs() < 1, inner - 2, 0.0).norm())
        assert abs(answer.value - truth) <= options["radius"] + 1e-3 * (1 + truth)


def check_constants(x: Any, y: Any, answer: Any, options: Any) -> None:
    """g = |y - x|^2 / 2 has mu = L_g = C_gxy = 1."""
    if x.shape == y.shape:
        assert max(abs(value - 1) for value in (answer.mu, answer.smoothness, answer.cross)) < 1e-6
    assert answer.dimension == y.numel()


LENGTHS = [0.1, 1e-3, 1.0, 0, -1, math.nan, math.inf, "a", None, True, 1 << 70, 1e-300, torch.ones(1)]
COUNTS = [0, -1, 2.5, "a", None, True, math.nan]
DIAGNOSTICS: dict[str, tuple[dict[str, Any], dict[str, list[Any]], Callable[[Any, Any, Any, Any], None]]] = {
    "check_hypergradient": (
        {"directions": 1},
        {
            "tol": [1e-4, 0.5, *LENGTHS],
            "directions": [1, 2, *COUNTS],
            "method": [None, 3, bilevel.LinearSolve, bilevel.LinearSolve(), bilevel.Unrolled(steps=5), "a"],
            "solver": [None, 3, bilevel.DMLCBO, bilevel.DMLCBO(upper_step=0.1), "a"],
            "gradient": [None, torch.zeros(3).double(), torch.ones(1), "a", 3, torch.full((3,), math.nan)],
        },
        check_verdict,
    ),
    "certificate": (
        {"delta": 0.1, "samples": 20},
        {"delta": LENGTHS, "samples": [20, 21, *COUNTS], "eta": [None, 0.5, *LENGTHS]},
        check_certificate,
    ),
    "goldstein_measure": (
        {"radius": 0.1, "samples": 5},
        {"radius": LENGTHS, "samples": [1, 5, *COUNTS]},
        check_goldstein,
    ),
    "estimate_constants": (
        {},
        {"radius": LENGTHS, "samples": [2, 5, *COUNTS]},
        check_constants,
    ),
}


# --- theory -----------------------------------------------------------------------------------------------------------

USUAL = {"mu": 1, "smoothness": 2.0, "cross": 1.0, "upper_slope": 1.0, "upper_smoothness": 1.0, "dimension": 3}
HUGE_OR_NOT = [1, 2.0, 0.5, 10, 0, -1, 1e-30, 1e30, 1e-300, 1e300, math.nan, math.inf, "a", None, True, 1 << 70, 2.5,
               np.float64(2), torch.ones(1), [1.0]]  # fmt: skip


@st.composite
def theory_calls(draw: Any) -> Call:
    """Constants, the theory of them, and one of the questions to it; each with up to two odd arguments."""
    constants = {**USUAL, **draw(some_of([*USUAL, "cross_smoothness", "hessian_smoothness"]))}
    settings = {"delta": 0.1, **draw(some_of(["delta", "eta", "exponent", "rate", "truncation", "constants"]))}
    name = draw(st.sampled_from(["bound", "steps_for", "from_theory", "terms", "variance", "bias"]))
    odd = draw(some_of(["gap", "lower_error", "first"]))
    first = odd.pop("first", 10 if name not in ("steps_for", "from_theory") else 0.1)
    asked = {"gap": 1.0, **odd}

    def run() -> None:
        theory = bilevel.diagnostics.Theory(**{"constants": bilevel.diagnostics.Constants(**constants), **settings})
        assert str(theory)
        if name == "from_theory":
            solver, steps = bilevel.diagnostics.dmlcbo_from_theory(theory, eps=first, **asked)
            assert solver.upper_step > 0
            assert theory.bound(steps, **asked) <= first
        elif name == "steps_for":
            assert theory.bound(theory.steps_for(first, **asked), **asked) <= first
        else:
            answer = getattr(theory, name)(first, **asked if name == "bound" else {})
            assert 0 <= answer < math.inf

    return Call(f"Theory({constants}, {settings}).{name}({first!r}, {asked})", run)


@st.composite
def some_of(draw: Any, names: list[str]) -> dict[str, Any]:
    """At most two of the names, with odd values."""
    chosen = draw(st.one_of(st.just(set()), st.sets(st.sampled_from(names), max_size=2)))
    return {name: draw(st.sampled_from(HUGE_OR_NOT)) for name in sorted(chosen)}


# --- observers --------------------------------------------------------------------------------------------------------


@st.composite
def observer_calls(draw: Any) -> Call:
    """A log in a good or bad place, told of records with good and odd numbers."""
    name = draw(st.sampled_from(["CSVFile", "TensorBoard"]))
    places = ["new", "new", "new", "old", "folder", "missing/new", "old/new", "a" * 300, "a" * 5000, "a\0b", "\ud800"]
    place = draw(st.sampled_from([*places, 3, None, b"x", "", math.nan, ["new"], np.ones(2)]))
    numbers = draw(st.lists(st.sampled_from([0.5, math.nan, math.inf, 1e300, -0.0]), min_size=1, max_size=3))

    def run() -> None:
        records = [
            bilevel.Record(step=k, seconds=value, upper=value, lower_residual=value, stationarity=value)
            for k, value in enumerate(numbers)
        ]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "old").write_text("precious")
            (Path(folder) / "folder").mkdir()
            path = f"{folder}/{place}" if isinstance(place, str) and place else place
            try:
                log = getattr(bilevel.run, name)(path)
                log.begin(records[:1])
                for record in records[1:]:
                    log(record, None)
                log.end()
                if name != "TensorBoard":
                    lines = Path(path).read_text().splitlines()
                    assert len(lines) == len(records) + (name == "CSVFile")
            finally:
                assert (Path(folder) / "old").read_text() == "precious"

    return Call(f"{name}({place!r:.80}) of {numbers}", run)


def calls() -> Any:
    """All of them."""
    return st.one_of(
        set_calls(), set_calls(), problem_calls(), setting_calls(), diagnostic_calls(), theory_calls(), observer_calls()
    )


class Late(BaseException):
    """A call did not answer."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, and say so when it took longer (both by the processor's time, not the clock)."""

    def late(*_: Any) -> None:
        raise Late(f"no answer within {10 * seconds} s")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, 10 * seconds)
    began = time.process_time()
    try:
        yield
        assert time.process_time() - began < seconds
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def attempt(call: Call) -> bool:
    """Make the call; whether it was answered. An error of ours is fine, any other is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of loose residuals and coarse dtypes: the answer is checked
        try:
            with within(1.0):
                call.run()
        except bilevel.BilevelError:
            return False
    return True


def shown(value: Any) -> str:
    """A value with all that matters of it."""
    if isinstance(value, Tensor):
        kind = (
            f"{value.dtype}, {tuple(value.shape)}, strides {value.stride()}, grad {value.requires_grad}, {value.device}"
        )
        return f"tensor({value.detach().tolist() if value.device.type != 'meta' else ''}, {kind})"
    return repr(value)
