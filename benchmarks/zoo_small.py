"""Small problems to test claims of convergence on: starts on kinks, and fifty random problems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bilevel import Problem, sets

from .zoo_problems import Case

Maker = Callable[[int, torch.dtype], Case]
KINK_STARTS: dict[str, tuple[sets.ConvexSet, list, list]] = {
    "orthant": (sets.NonNegative(), [0.0, 0.0, 0.0], [1.0, 0.5, 0.3]),
    "box": (sets.Box(0.0, 1.0), [0.0, 1.0, 0.0], [0.5, 0.3, 0.6]),
    "l1": (sets.L1Ball(1.0), [1.0, 0.0, 0.0], [0.2, 0.3, -0.2]),
    "simplex": (sets.Simplex(1.0), [1.0, 0.0, 0.0], [0.2, 0.5, 0.3]),
    "psd": (sets.PSDCone(), [[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.3], [0.3, 0.8]]),
    "cone": (sets.SecondOrderCone(), [0.0, 0.0, 0.0], [1.0, 0.5, 0.2]),
}
"""A set, a start on one of its kinks, and the target of f."""


def kink(name: str, mixed: bool, seed: int, dtype: torch.dtype) -> Case:
    """f = |y - t|^2, g = |y - x|^2 / 2, or mixed by a matrix, from x = y on a kink."""
    constraint, start, target = KINK_STARTS[name]
    x, t = torch.tensor(start, dtype=dtype), torch.tensor(target, dtype=dtype)
    ramp = torch.arange(x.numel() ** 2, dtype=dtype).reshape(x.numel(), -1).sin()
    matrix = torch.eye(x.numel(), dtype=dtype) + (0.2 / x.numel()) * mixed * (ramp + ramp.T)

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return (y - x).reshape(-1) @ matrix @ (y - x).reshape(-1) / 2

    return Case(Problem(lambda x, y: (y - t).square().sum(), lower, constraint), x, x.clone())


def drawn(number: int, seed: int, dtype: torch.dtype) -> Case:
    """Quadratic or logistic g of condition number up to 1e4, f with waves or kinks, on one of eight sets.

    Every third set, unless it is a cone, moves with x, and every fourth problem has bounds for x.
    """
    rng = np.random.default_rng(1000 + number)
    below, above = int(rng.integers(3, 30)), int(rng.integers(1, 10))
    basis = np.linalg.qr(rng.normal(size=(below, below)))[0]
    values = np.logspace(0, -rng.uniform(0, 4), below)
    G, B, t, c = (
        torch.as_tensor(v, dtype=dtype)
        for v in (
            basis * values @ basis.T,
            rng.normal(size=(below, above)),
            rng.normal(size=below),
            rng.normal(size=above),
        )
    )
    kinds: list[Callable] = [
        lambda r: sets.Box(-0.5 * r, 0.5 * r), lambda r: sets.NonNegative(), lambda r: sets.L1Ball(r),
        lambda r: sets.L2Ball(r), lambda r: sets.Simplex(r), lambda r: sets.CappedSimplex(total=r, cap=0.5),
        lambda r: sets.MonotoneCone(), lambda r: sets.SecondOrderCone(),
    ]  # fmt: skip
    make = kinds[number % 8]

    def upper(x: Tensor, y: Tensor) -> Tensor:
        value = (y - t).square().mean() + 0.05 * (x - c).square().mean()
        if number % 3 == 1:
            value = value + 0.1 * (3 * x).sin().mean()
        return value + 0.1 * y.abs().mean() if number % 3 == 2 else value

    def lower(x: Tensor, y: Tensor) -> Tensor:
        bend = torch.nn.functional.softplus(basis_t @ y).sum() if number % 5 == 0 else 0.0
        return y @ G @ y / 2 - (B @ x) @ y + bend

    basis_t = torch.as_tensor(basis, dtype=dtype)
    start = make(1.0).project(torch.zeros(below, dtype=dtype))
    moving = number % 3 == 0 and number % 8 not in (1, 6, 7)
    constraint = (lambda x: make(1 + x[0].tanh() / 5)) if moving else make(1.0)
    bounds = (-0.3, 0.3) if number % 4 == 2 else None
    problem = Problem(upper, lower, constraint, upper_constraint=sets.Box(*bounds) if bounds else None)
    return Case(problem, torch.zeros(above, dtype=dtype), start, bounds)


KINKS: dict[str, Maker] = {
    f"kink-{name}{'-mixed' * mixed}": partial(kink, name, mixed) for name in KINK_STARTS for mixed in (False, True)
}
RANDOM: dict[str, Maker] = {f"random{number}": partial(drawn, number) for number in range(50)}
