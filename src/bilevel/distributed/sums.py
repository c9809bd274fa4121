"""Sums over ranks that autograd follows.

One rule gives every derivative: the loss of a run is the sum of the losses of its ranks. A sum over ranks is used by
all of them, so the derivative of its parts is the sum over ranks of what each passes back: `sum_over_ranks` is its own
transpose. A value of which every rank has a copy, such as a radius, gets the derivatives of all: `held_by_all`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .ranks import Ranks


def sum_over_ranks(part: Tensor, ranks: Ranks) -> Tensor:
    """s = part_0 + part_1 + ... on every rank, the same bits; derivatives of any order are sums over ranks likewise.

    The loss of a run is the sum of what its ranks call their loss: a loss that depends on `s` alone is counted by one
    of them, or divided by `ranks.size`. Every rank must take part, forward and backward.

    Parameters
    ----------
    part
        What this rank adds, of any shape, the same on every rank.
    ranks
        Who adds.

    Returns
    -------
    Tensor
        The sum, of the shape of `part`.

    References
    ----------
    Ours; the pair of conjugate operators of Shoeybi et al. (2019), Megatron-LM, for losses that are divided.

    Examples
    --------
    Columns of A are divided among ranks, and A y is a sum; each rank counts its share of the loss:

    >>> from bilevel.distributed import Ranks
    >>> ranks, A, y = Ranks(), torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, 1.0], requires_grad=True)
    >>> loss = sum_over_ranks(A @ y, ranks).square().sum() / ranks.size
    >>> torch.autograd.grad(loss, y)
    (tensor([10., 20.]),)
    """
    return _Sum.apply(part, ranks)  # type: ignore[return-value]


def held_by_all(value: Tensor, ranks: Ranks) -> Tensor:
    """`value`, of which every rank has a copy; its derivative is the sum of what the ranks pass back."""
    return _Copy.apply(value, ranks)  # type: ignore[return-value]


def added_up(part: Tensor, ranks: Ranks) -> Tensor:
    """The sum over ranks without derivatives, where `part` is; `part` is left as it was."""
    return ranks.all_sum(part.detach().to(ranks.device, copy=True).contiguous()).to(part.device)


def largest_of(part: Tensor, ranks: Ranks) -> Tensor:
    """The largest over ranks, entry by entry, without derivatives, where `part` is."""
    return ranks.all_max(part.detach().to(ranks.device, copy=True).contiguous()).to(part.device)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return added_up(part, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return sum_over_ranks(gradient, ctx.ranks), None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return sum_over_ranks(gradient, ctx.ranks), None
