"""What the library adds to one step of DMLCBO on plain f and g: function calls, and time next to a loop by hand.

The problem is README's: weighted least squares over |y|_1 <= 1. The loop by hand has the same mathematics in torch
operations (autograd.grad for gradients and products, projection and Jacobian by sorting, conjugate gradients from the
last adjoint) without spaces, checks, counts, records and interruption; both end at the same x to 1e-8.
Times are processor seconds of the two in turn, the median of the ratios: of runs of 200 steps, and of the last 160 of
them alone (from runs of 200 and of 40 steps), without the curvature at the start and what is judged at both ends.
Calls are counted as cProfile counts them, between steps 30 and 90. About three quarters of those of the loop by hand
are within `torch.autograd.grad`, which is called seven times per step and makes 36 to 43 calls of its own each time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad

import bilevel

from .harness import Row

SIZES = ((150, 30, 50), (2000, 100, 200), (2000, 784, 200))
"""Noisy rows, columns, trusted rows."""
STEPS, FEW, RUNS = 200, 40, 9


def rows() -> Iterator[Row]:
    f, g, x, y = functions(*SIZES[0])
    problem, solver = bilevel.Problem(f, g, bilevel.sets.L1Ball(1.0)), bilevel.DMLCBO(upper_step=0.1)
    total = calls(lambda steps: bilevel.minimize(problem, x, y, solver=solver, steps=steps))
    yield Row("calls of one DMLCBO step, README's problem (cProfile)", total, "<= 400")
    curvature = bilevel.minimize(problem, x, y, solver=solver, steps=1).state.curvature
    yield Row("the same of the loop by hand", calls(lambda steps: by_hand(f, g, x, y, curvature, steps)))
    for size in SIZES:
        run, step = overhead(*size)
        yield Row(f"DMLCBO / the same loop by hand, {size[0]} x {size[1]}", run, "<= 1.25")
        yield Row("its steps alone", step)


def functions(noisy: int, columns: int, trusted: int) -> tuple[Any, Any, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(noisy + trusted, columns, generator=generator, dtype=torch.float64)
    b = torch.randn(noisy + trusted, generator=generator, dtype=torch.float64)
    first, last = (A[:trusted].clone(), b[:trusted].clone()), (A[trusted:].clone(), b[trusted:].clone())

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (first[0] @ y - first[1]).square().mean()

    def g(x: Tensor, y: Tensor) -> Tensor:
        return (x.sigmoid() * (last[0] @ y - last[1]).square()).mean() + 1e-3 * y @ y

    return f, g, torch.zeros(noisy, dtype=torch.float64), torch.zeros(columns, dtype=torch.float64)


def calls(run: Callable[[int], Any]) -> float:
    """Calls of one step, as cProfile counts them."""
    run(1)  # what is imported late
    counts = []
    for steps in (30, 90):
        total = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal total
            total += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            run(steps)
        finally:
            sys.setprofile(None)
        counts.append(total)
    return (counts[1] - counts[0]) / 60


def overhead(noisy: int, columns: int, trusted: int) -> tuple[float, float]:
    """The ratio of whole runs, and that of steps."""
    f, g, x, y = functions(noisy, columns, trusted)
    problem, solver = bilevel.Problem(f, g, bilevel.sets.L1Ball(1.0)), bilevel.DMLCBO(upper_step=0.1, refresh=10**6)

    def library(steps: int) -> bilevel.Solution:
        return bilevel.minimize(problem, x, y, solver=solver, steps=steps, evaluate_every=steps)

    found = library(STEPS)
    curvature = found.state.curvature
    gap = float((by_hand(f, g, x, y, curvature, STEPS) - found.x).abs().max())
    if not gap < 1e-8:
        raise AssertionError(f"the loop by hand is another one: x differs by {gap:.1e}")
    runs, steps = [], []
    for _ in range(RUNS):
        ours, few = seconds(lambda: library(STEPS)), seconds(lambda: library(FEW))
        plain, few_plain = (seconds(lambda n=n: by_hand(f, g, x, y, curvature, n)) for n in (STEPS, FEW))
        runs.append(ours / plain)
        steps.append((ours - few) / (plain - few_plain))
    return statistics.median(runs), statistics.median(steps)


def seconds(run: Callable[[], Any]) -> float:
    """Processor seconds of one call."""
    began = process_time()
    run()
    return process_time() - began


def by_hand(f: Any, g: Any, x: Tensor, y: Tensor, curvature: float, steps: int) -> Tensor:
    """Steps of DMLCBO(upper_step=0.1)."""
    w, v, adjoint = estimates(f, g, x, y, None, curvature)
    moment = w.square().mean()
    floor = 0.1 * moment.sqrt()
    for k in range(1, steps + 1):
        eta = 1.0 / (100 + k) ** 0.5
        x_next = x - 0.1 * eta / (moment.sqrt() + 1e-8).clamp(floor).clamp(max=1e6) * w
        y = torch.lerp(y, project(y - v / (eta * curvature)), eta)
        x = x_next
        h, slope, adjoint = estimates(f, g, x, y, adjoint, curvature)
        w, v = torch.lerp(w, h, 10 * eta), torch.lerp(v, slope, 10 * eta)
        moment = torch.lerp(h.square().mean(), moment, 0.99)
        if k == 20:
            floor = 0.1 * h.square().mean().sqrt()
    return x


def estimates(f: Any, g: Any, x: Tensor, y: Tensor, start: Tensor | None, curvature: float) -> tuple[Tensor, ...]:
    """The hypergradient, grad_y g and the adjoint."""
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    f_x, f_y = grad(f(x, y), (x, y), allow_unused=True, materialize_grads=True)
    (slope,) = grad(g(x, y), y, create_graph=True)
    z = y.detach() - slope.detach() / curvature
    signs = project(z).sign() if z.abs().sum() > 1.0 else None

    def face(u: Tensor) -> Tensor:
        return u if signs is None else signs.abs() * u - signs * ((signs @ u) / signs.abs().sum())

    def product(u: Tensor) -> Tensor:
        return face(grad(slope, y, u, retain_graph=True)[0])

    b = face(f_y)
    scale = float(b.norm())
    w, residual = torch.zeros_like(b), b
    if start is not None:
        near = face(start)
        left = b - product(near)
        if float(left.norm()) < scale:
            w, residual = near, left
    direction, square = residual, float(residual @ residual)
    for _ in range(30):
        if square**0.5 <= 1e-3 * scale:
            break
        image = product(direction)
        along = square / float(direction @ image)
        w, residual = w + along * direction, residual - along * image
        before, square = square, float(residual @ residual)
        direction = residual + (square / before) * direction
    return f_x - grad(slope, x, w)[0], slope.detach(), w


def project(z: Tensor) -> Tensor:
    """On |y|_1 <= 1."""
    size = z.abs()
    if size.sum() <= 1.0:
        return z
    sorted_size = size.sort(descending=True).values
    level = (sorted_size.cumsum(0) - 1.0) / torch.arange(1, len(z) + 1, dtype=z.dtype)
    return z.sign() * (size - level[int((sorted_size > level).sum()) - 1]).clamp_min(0.0)
