"""Batch normalisation over the images of all ranks.

    mean = (sum of a over images and places of all ranks) / n,      var = (sum of a^2) / n - mean^2

so that a step equals that of one process with all images. `torch.nn.SyncBatchNorm` works only on GPUs. The forward pass
takes one sum over ranks, of n and both sums in float64, and the backward pass another one: with z = (a - mean) s,
s = 1 / sqrt(var + eps), and v the derivative in the output w z + b,

    da = w s (v - (sum v) / n - z (sum v z) / n)

has the sums of all ranks. Each rank's own sums are the derivatives in b and w, and come with torch's own kernels for a
normalisation by fixed statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..ranks import Ranks


@contextmanager
def shared_statistics(network: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Within it the network normalises by the images of all ranks, and its graph does so backwards."""
    layers: list[Any] = [layer for layer in network.modules() if ranks.size > 1 and isinstance(layer, _BatchNorm)]
    layers = [layer for layer in layers if layer.training or layer.running_mean is None]  # not by running statistics
    for layer in layers:
        layer.forward = partial(_forward, layer, ranks)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: _BatchNorm, ranks: Ranks, images: Tensor) -> Tensor:
    layer._check_input_dim(images)
    weight, bias = layer.weight, layer.bias
    if weight is None:
        weight, bias = images.new_ones(images.shape[1]), images.new_zeros(images.shape[1])
    output, mean, variance, count = _Normalised.apply(images, weight, bias, layer.eps, ranks)
    if layer.training and layer.track_running_stats and layer.running_mean is not None:
        _update_running(layer, mean, variance * (count / (count - 1).clamp_min(1)))
    return output


@torch.no_grad()
def _update_running(layer: Any, mean: Tensor, variance: Tensor) -> None:
    """Running statistics; the variance is the unbiased one."""
    layer.num_batches_tracked.add_(1)
    weight = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean), weight)
    layer.running_var.lerp_(variance.to(layer.running_var), weight)


class _Normalised(torch.autograd.Function):
    """w z + b with one mean and variance per channel, of all ranks; and mean, variance and n."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor, eps: float, ranks: Ranks) -> tuple[Tensor, ...]:
        own = a.new_tensor([a.numel() // a.shape[1]], dtype=torch.float64)
        mean, variance = (part.double() for part in torch.batch_norm_update_stats(a, None, None, 0.0))
        sums = ranks.sum(torch.cat([own, own * mean, own * (variance + mean.square())]))
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
        fixed = mean.to(a.dtype), variance.to(a.dtype)
        da, dw, db = torch.ops.aten.native_batch_norm_backward(  # w s v, sum v z and sum v of this rank
            v.contiguous(memory_format=_format(a)), a, weight, *fixed, None, None, False, ctx.eps, [True, True, True]
        )
        sum_v, sum_vz = ctx.ranks.sum(torch.cat([db.double(), dw.double()])).div(count).chunk(2)
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
