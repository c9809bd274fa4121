"""Batch normalisation over the images of all ranks.

    mean = (sum of a over images and places of all ranks) / n,      var = (sum of a^2) / n - mean^2

so that a step is that of one process with all images. `torch.nn.SyncBatchNorm` does it on GPUs alone. One round
forwards, with n and both sums in float64, and one backwards: with z = (a - mean) s, s = 1 / sqrt(var + eps), and v the
derivative in the output w z + b,

    da = w s (v - (sum v) / n - z (sum v z) / n)

has the sums of all ranks. Each rank's own sums are the derivatives in b and w, and come with torch's own kernels for a
normalisation by given statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .ranks import Ranks


def batch_normalisations(network: nn.Module) -> list[_BatchNorm]:
    """The parts of the network whose statistics are those of a batch, when it trains."""
    return [part for part in network.modules() if isinstance(part, _BatchNorm) and (part.training or _has_none(part))]


@contextmanager
def statistics_of_all(network: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Within it the network normalises by the images of all ranks, and its graph does so backwards."""
    parts = batch_normalisations(network) if ranks.size > 1 else []
    for part in parts:
        part.forward = partial(_forward, part, ranks)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _has_none(part: _BatchNorm) -> bool:
    return part.running_mean is None


def _forward(part: _BatchNorm, ranks: Ranks, input: Tensor) -> Tensor:
    part._check_input_dim(input)
    weight, bias = part.weight, part.bias
    if weight is None:
        weight, bias = input.new_ones(input.shape[1]), input.new_zeros(input.shape[1])
    output, mean, variance, count = _Normalised.apply(input, weight, bias, part.eps, ranks)  # type: ignore[misc]
    if part.training and part.track_running_stats and part.running_mean is not None:
        _follow(part, mean, variance * (count / (count - 1).clamp_min(1)))
    return output


@torch.no_grad()
def _follow(part: Any, mean: Tensor, variance: Tensor) -> None:
    """Running statistics; the variance that runs is the unbiased one."""
    part.num_batches_tracked.add_(1)
    weight = 1.0 / float(part.num_batches_tracked) if part.momentum is None else part.momentum
    part.running_mean.lerp_(mean.to(part.running_mean), weight)
    part.running_var.lerp_(variance.to(part.running_var), weight)


class _Normalised(torch.autograd.Function):
    """w z + b with one mean and variance per channel, of all ranks; and mean, variance and n."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor, eps: float, ranks: Ranks) -> tuple[Tensor, ...]:
        own = a.new_tensor([a.numel() // a.shape[1]], dtype=torch.float64)
        mean, variance = (part.double() for part in torch.batch_norm_update_stats(a, None, None, 0.0))
        sums = ranks.all_sum(torch.cat([own, own * mean, own * (variance + mean.square())]))
        count, total, squares = sums[0], *sums[1:].chunk(2)
        mean = total / count
        variance = (squares / count - mean.square()).clamp_min(0.0)
        ctx.save_for_backward(a, weight, mean, variance, count)
        ctx.eps, ctx.ranks = eps, ranks
        ctx.mark_non_differentiable(mean, variance, count)
        output = nn.functional.batch_norm(a, mean.to(a.dtype), variance.to(a.dtype), weight, bias, False, 0.0, eps)
        return output, mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: Tensor, *_: Tensor) -> tuple[Any, ...]:
        a, weight, mean, variance, count = ctx.saved_tensors
        given = mean.to(a.dtype), variance.to(a.dtype)
        da, dw, db = torch.ops.aten.native_batch_norm_backward(  # w s v, sum v z and sum v of this rank
            v.contiguous(memory_format=_format(a)), a, weight, *given, None, None, False, ctx.eps, [True, True, True]
        )
        sum_v, sum_vz = ctx.ranks.all_sum(torch.cat([db.double(), dw.double()])).div_(count).chunk(2)
        s = (variance + ctx.eps).rsqrt()
        slope = weight.double() * s * s * sum_vz  # z is linear in a: so is what the statistics take away
        offset = weight.double() * s * sum_v - slope * mean
        shape = (1, -1, *(1,) * (a.ndim - 2))
        da = da.addcmul_(a, -slope.to(a.dtype).reshape(shape)).sub_(offset.to(a.dtype).reshape(shape))
        return da, dw, db, None, None


def _format(a: Tensor) -> torch.memory_format:
    """Channels innermost or not, as the images have it."""
    last = a.ndim == 4 and a.is_contiguous(memory_format=torch.channels_last) and not a.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format
