"""Vectors cut into parts, and what plain and divided sets say about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bilevel import sets
from bilevel.distributed import Ranks, sharded


def borders(n: int, size: int, generator: torch.Generator) -> list[slice]:
    """`size` neighbouring parts of range(n), of any length: some are empty."""
    inner = torch.randint(0, n + 1, (size - 1,), generator=generator).sort().values.tolist()
    ends = [0, *inner, n]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def cases(count: int, seed: int = 0) -> Iterator[tuple[str, sets.ConvexSet, Tensor, torch.Generator]]:
    """Points near and far, with ties, zeros, batches, and one entry; sets that hold them, and sets that do not."""
    generator = torch.Generator().manual_seed(seed)
    draw: Any = {"generator": generator, "dtype": torch.float64}
    for k in range(count):
        n, scale = [1, 3, 40, 700][k % 4], [1.0, 1e9, 1e12, 1e-9][k // 4 % 4]
        z = scale * torch.randn(n, **draw)
        if k % 5 == 1:
            z = scale * torch.randint(-3, 4, (2, 3, n), generator=generator).double()  # a batch with many ties
        if k % 5 == 2:
            z = scale * torch.exp(4 * torch.randn(n, **draw))
        if k % 5 == 3:
            z = torch.zeros(n, dtype=torch.float64)
        radius = [1.0, 0.3 * scale, 1e3 * scale, 0.0][k % 7 % 4]
        center = scale * torch.randn(n, **draw)
        for Y in (
            sets.L1Ball(radius), sets.Simplex(radius), sets.L2Ball(radius), sets.Box(-radius, 0.5 * radius),
            sets.LInfBall(radius), sets.NonNegative(), sets.FreeSpace(), sets.L2Ball(radius, center),
            sets.Box(center - radius, center + radius),
        ):  # fmt: skip
            yield f"case {k}: {Y} at scale {scale:g}, {tuple(z.shape)}", Y, z, generator


def part_of(Y: sets.ConvexSet, here: slice) -> sets.ConvexSet:
    """The set with this rank's part of its center or bounds."""
    tensors = {name: value for name, value in Y.tensor_parameters().items() if name != "radius" and value.ndim}
    cut = {name: value[..., here] if here.start < here.stop else 0.0 for name, value in tensors.items()}
    return Y.replace(**cut) if cut else Y


def answers(Y: sets.ConvexSet, z: Tensor, v: Tensor) -> dict[str, Any]:
    """Everything that a set says about z."""
    face, p = Y.jacobian(z), Y.project(z)
    return {
        "P(z)": p,
        "H v": face.apply(v),
        "support": None if face.support is None else face.support.double(),
        "dimension": torch.as_tensor(face.dimension).double(),
        "margin": Y.margin(z),
        "distance": Y.distance(z),
        "inside": torch.tensor(float(bool(Y.contains(z)))),
        "P(z) inside": torch.tensor(float(bool(Y.contains(p)))),
        "projector": torch.tensor(float(face.is_projector)),
    }


WHOLE = ("P(z)", "H v", "support")
"""The answers that are divided like the point."""


def disagreement(ranks: Ranks, name: str, Y: sets.ConvexSet, z: Tensor, here: slice, v: Tensor) -> list[str]:
    """What a divided set says otherwise than the plain one, beyond 1e-12 of the size of the answer."""
    plain = answers(Y, z, v)
    mine = answers(sharded(part_of(Y, here), ranks), z[..., here], v[..., here])
    wrong = []
    size = float(z.abs().max()) + float(torch.as_tensor(getattr(Y, "radius", 0.0)).max())
    for key, expected in plain.items():
        if expected is None or mine[key] is None:
            if expected is not mine[key]:
                wrong.append(f"{name}, {key}: {mine[key]} instead of {expected}")
            continue
        unit = max(float(plain["P(z)"].abs().max()), 1e-300) if key == "P(z)" else size
        unit = 1.0 if key not in ("P(z)", "margin", "distance") else unit
        there = expected[..., here] if key in WHOLE else expected
        same = (mine[key] == there) | ((mine[key] - there).abs() <= 1e-12 * unit)
        if mine[key].shape != there.shape or not bool(same.all()):
            wrong.append(f"{name}, {key} on rank {ranks.rank}: {mine[key]} instead of {there}")
    return wrong
