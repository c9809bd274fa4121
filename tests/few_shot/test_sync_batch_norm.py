"""Batch normalisation over ranks is `torch.nn.BatchNorm` of the images of all of them."""

import pytest
import torch
from tests.ranks import on_ranks
from torch import nn

from bilevel.few_shot.sync_batch_norm import shared_statistics

pytestmark = pytest.mark.slow  # each starts several processes

LAYERS = {
    "planes": (lambda: nn.BatchNorm2d(3), (7, 3, 4, 5)),
    "planes with channels innermost": (lambda: nn.BatchNorm2d(3), (7, 3, 4, 5)),
    "vectors": (lambda: nn.BatchNorm1d(3), (7, 3)),
    "no weight": (lambda: nn.BatchNorm2d(3, affine=False), (7, 3, 2, 2)),
    "no running statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), (7, 3)),
    "cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (7, 3, 2, 2)),
}


def derivatives(ranks, name):
    """Output, derivatives in images and parameters, and buffers, of this rank's part of seven images, 5 and 2."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double()
    a, v = 2 + 3 * torch.randn(shape).double(), torch.randn(shape).double()
    mine = slice(None) if ranks.size == 1 else slice(0, 5) if ranks.rank == 0 else slice(5, 7)
    own = a[mine].clone()
    if "innermost" in name:
        own = own.contiguous(memory_format=torch.channels_last)
    own.requires_grad_()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    with shared_statistics(layer, ranks):
        out = layer(own)
    found = torch.autograd.grad(out, [own, *layer.parameters()], v[mine])
    summed = [ranks.sum(u.contiguous()) for u in found[1:]]
    assert "forward" not in vars(layer)
    parts = [ranks.gather(u.detach().contiguous().tolist()) for u in (out, found[0])]
    together = [torch.cat([torch.tensor(each).double() for each in part]) for part in parts]
    return [u.double().flatten().tolist() for u in (*together, *summed, *layer.buffers())]


def all_layers(ranks):
    return {name: derivatives(ranks, name) for name in LAYERS}


def test_two_ranks_normalise_like_one():
    (one,) = on_ranks(all_layers, 1)
    for found in on_ranks(all_layers, 2):
        for name, expected in one.items():
            for values, wanted in zip(found[name], expected, strict=True):
                assert values == pytest.approx(wanted, rel=1e-12, abs=1e-12), name
