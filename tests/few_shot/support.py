"""Batches of tasks of several kinds, for the tests of the head."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("random", "clustered", "correlated", "duplicated")


def tasks_of(
    kind: str, tasks: int, ways: int, shots: int, features: int, *, seed: int = 0, queries: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    """Support features (t, n, d), labels (t, n) and queries (t, m, d), in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(tasks, *shape, generator=generator, dtype=torch.float64)

    labels = (torch.arange(ways * shots) % ways).expand(tasks, -1)
    noise, query, centres, common = (
        draw(ways * shots, features),
        draw(queries, features),
        draw(ways, features),
        draw(1, features),
    )
    if kind == "clustered":
        noise = centres.gather(1, labels.unsqueeze(-1).expand_as(noise)) + 0.5 * noise
    if kind == "correlated":  # a large common part: the quadratic form is stiff in a few directions
        noise, query = 3 * common + 0.1 * noise, 3 * common + 0.1 * query
    if kind == "duplicated":  # each example twice, the second time under another label: G is singular without a ridge
        noise = torch.cat([noise[:, : (ways * shots + 1) // 2]] * 2, 1)[:, : ways * shots]
    return noise, labels, query
