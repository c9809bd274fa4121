"""Batch normalisation over the images of all ranks.

    mean = (sum of a over images and places of all ranks) / n,      var = (sum of (a - mean)^2) / n

so that a step is that of one process with all images. `torch.nn.SyncBatchNorm` does it on GPUs alone. One round
forwards, with n, the sum and the sum of squares (float64), and one backwards, with the sums of the incoming gradient v
and of v z that the derivative of z = (a - mean) / sqrt(var + eps) needs:

    da = (v - (sum v) / n - z (sum v z) / n) / sqrt(var + eps)
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
    images = input  # called so by torch
    part._check_input_dim(images)
    normal, mean, variance, count = _Normalised.apply(images, part.eps, ranks)  # type: ignore[misc]
    if part.training and part.track_running_stats and part.running_mean is not None:
        _follow(part, mean, variance * (count / (count - 1).clamp_min(1)))
    if part.weight is None:
        return normal
    shape = (1, -1, *(1,) * (images.ndim - 2))
    return normal * part.weight.reshape(shape) + part.bias.reshape(shape)


@torch.no_grad()
def _follow(part: Any, mean: Tensor, variance: Tensor) -> None:
    """Running statistics; the variance that runs is the unbiased one."""
    part.num_batches_tracked.add_(1)
    weight = 1.0 / float(part.num_batches_tracked) if part.momentum is None else part.momentum
    part.running_mean.lerp_(mean.to(part.running_mean), weight)
    part.running_var.lerp_(variance.to(part.running_var), weight)


class _Normalised(torch.autograd.Function):
    """z = (a - mean) / sqrt(var + eps), one mean and variance per channel, of all ranks."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, eps: float, ranks: Ranks) -> tuple[Tensor, ...]:
        over = [axis for axis in range(images.ndim) if axis != 1]
        shape = (1, -1, *(1,) * (images.ndim - 2))
        own = images.new_tensor([images.numel() // images.shape[1]], dtype=torch.float64)
        sums = ranks.all_sum(torch.cat([own, _sum(images, over), _sum(images.square(), over)]))
        count, total, squares = sums[0], *sums[1:].chunk(2)
        mean = total / count
        variance = (squares / count - mean.square()).clamp_min(0.0)
        scale = (variance + eps).rsqrt().to(images.dtype).reshape(shape)
        normal = (images - mean.to(images.dtype).reshape(shape)) * scale
        ctx.save_for_backward(normal, scale, count)
        ctx.over, ctx.shape, ctx.ranks = over, shape, ranks
        ctx.mark_non_differentiable(mean, variance, count)
        return normal, mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, v: Tensor, *_: Tensor) -> tuple[Any, ...]:
        normal, scale, count = ctx.saved_tensors
        sums = ctx.ranks.all_sum(torch.cat([_sum(v, ctx.over), _sum(v * normal, ctx.over)])) / count
        first, second = (part.to(v.dtype).reshape(ctx.shape) for part in sums.chunk(2))
        return (v - first - normal * second) * scale, None, None


def _sum(a: Tensor, over: list[int]) -> Tensor:
    return a.sum(over, dtype=torch.float64)
