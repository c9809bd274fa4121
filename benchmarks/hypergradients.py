"""Estimators of the smoothed Jacobian, and whole hypergradients, at d2 = 784 on the l1 ball."""

from __future__ import annotations

import torch

import bilevel
from bilevel import sets
from bilevel.random import RandomStreams
from bilevel.spaces import Space

from .harness import Row, ratio

D, ROWS = 784, 2000


def rows() -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(D, generator=generator, dtype=torch.float64)
    v = torch.randn(D, generator=generator, dtype=torch.float64)
    Y, space, streams = sets.L1Ball(1.0), Space(1), RandomStreams()
    perturbed, two_point = (
        bilevel.hypergradients.Perturbed(radius=1e-6),
        bilevel.hypergradients.TwoPoint(directions=D),
    )

    def product(smoothing: object) -> object:
        return lambda: smoothing.sample(Y, z, space, streams, 0).apply(v)  # type: ignore[attr-defined]

    A = torch.rand(ROWS, D, generator=generator, dtype=torch.float64)
    labels = torch.sign(torch.randn(ROWS, generator=generator, dtype=torch.float64))
    problem = bilevel.Problem(
        upper=lambda x, y: torch.nn.functional.softplus(-labels * (A @ y)).mean(),
        lower=lambda x, y: (x.sigmoid() * torch.nn.functional.softplus(-labels * (A @ y))).mean() + 1e-3 * y @ y,
        constraint=Y,
    )
    x = torch.zeros(ROWS, dtype=torch.float64)
    y = Y.project(0.01 * v)

    def hypergradient(smoothing: object) -> object:
        method = bilevel.Neumann(terms=3, eta=0.3, truncation="full", smoothing=smoothing)  # type: ignore[arg-type]
        return lambda: bilevel.hypergradient(problem, x, y, method=method)

    return [
        Row(
            "Jacobian product at d2 = 784: TwoPoint(784, one block) / Perturbed",
            ratio(product(two_point), product(perturbed)),
            ">= 200",
        ),
        Row(
            "hypergradient, Q = 3 full sum, 2000 x 784 logistic: TwoPoint(784) / Perturbed",
            ratio(hypergradient(two_point), hypergradient(perturbed)),
        ),
        Row(
            "hypergradient, 2000 x 784 logistic: LinearSolve(tol=1e-3) / Neumann(Q = 3, Perturbed)",
            ratio(
                lambda: bilevel.hypergradient(problem, x, y, method=bilevel.LinearSolve(tol=1e-3, eta=0.3)),
                hypergradient(perturbed),
            ),
        ),
    ]
