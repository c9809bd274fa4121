"""Networks that average their gradients by themselves, for optimisers of torch: DistributedDataParallel and FSDP.

Both act in `backward` on the network's own parameters, once per pass. A torch optimiser asks for no more than that;
a solver of the library looks at other points x, and several times at one of them.

    "ddp"    every rank has all parameters; gradients are averaged in buckets while the backward pass still runs
    "fsdp"   every rank has a part of each parameter, of its gradient and of the optimiser's state (`fully_shard`)

Averages of P ranks are 1/P of the sums that the hypergradient is made of, so that cotangents go in times P.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from ..applications.few_shot.problem import Features
from ..applications.few_shot.training_state import TrainingState
from ..errors import Incompatible
from ..spaces import leaves
from .ranks import Ranks
from .shared_tasks import SharedFewShotProblem


class ParallelNetworkProblem(SharedFewShotProblem):
    """The same problem at the network's own parameters, passed through the module that averages their gradients."""

    def __init__(self, *arguments: Any, module: nn.Module, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.module, self.prefix = module, "module." if isinstance(module, DistributedDataParallel) else ""

    def _forward(self, x: Any) -> Features:
        own = [value for value in self.network.parameters() if value.requires_grad]
        if not all(torch.equal(u.detach(), v.detach()) for u, v in zip(own, leaves(x), strict=True)):
            raise Incompatible(
                "a network under DDP or FSDP has one point x, its own parameters: use network='replicated'"
            )
        return ParallelFeatures(leaves(x), *self._shared({}), own, self.ranks.size)

    def call_network(self, values: Any, images: Tensor) -> Tensor:
        buffers = {self.prefix + name: value for name, value in values.items()}
        with self.meeting():
            return functional_call(self.module, buffers, (images,))


@dataclass
class ParallelFeatures(Features):
    """Features whose derivative is left in `.grad` by one backward pass."""

    own: list[Any]
    ranks: int
    used: bool = False

    def pull_back(self, support: Tensor, query: Tensor) -> list[Tensor]:
        if self.used:
            raise Incompatible(
                "this hypergradient asks for several products with one pass of the network, which DDP and FSDP do not "
                "give: use LinearSolve() or Neumann(), or network='replicated'"
            )
        self.used = True
        for value in self.own:
            value.grad = None
        cotangents = [self.ranks * support.to(self.support), self.ranks * query.to(self.query)]
        torch.autograd.backward([self.support, self.query], cotangents)
        gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in self.own]
        for value in self.own:
            value.grad = None
        return gradients


def data_parallel(network: nn.Module, ranks: Ranks) -> DistributedDataParallel:
    """The network, all of it on this rank, with gradients averaged over the ranks."""
    return DistributedDataParallel(network, process_group=ranks.group, broadcast_buffers=False)


def sharded(network: nn.Module, ranks: Ranks) -> nn.Module:
    """The network, a part of each parameter on this rank; layers that were sharded already stay as they are."""
    if not isinstance(network, FSDPModule):
        fully_shard(network, mesh=_mesh(ranks), reshard_after_forward=True)
    network.set_reshard_after_forward(True)  # type: ignore[operator]
    return network


def _mesh(ranks: Ranks) -> DeviceMesh:
    if ranks.group is None:
        return init_device_mesh(ranks.device.type, (ranks.size,))
    return DeviceMesh.from_group(ranks.group, ranks.device.type)


def whole(state: TrainingState) -> TrainingState:
    """The state with whole tensors: every rank gets all parts."""
    return replace(state, **{name: _whole(getattr(state, name)) for name in ("parameters", "best", "optimizer")})


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {name: _whole(entry) for name, entry in value.items()}
    return [_whole(entry) for entry in value] if isinstance(value, list) else value


def parts(state: TrainingState, network: nn.Module) -> TrainingState:
    """The state of a file with this rank's part of every tensor, divided as the parameters of the network are."""
    own = dict(network.named_parameters())
    best, optimizer = state.best, state.optimizer
    if best is not None:
        best = {**best, "parameters": _parts(best["parameters"], own)}
    if optimizer is not None:
        trained = [value for value in own.values() if value.requires_grad]
        moments = {i: {k: _part(v, trained[i]) for k, v in of.items()} for i, of in optimizer["state"].items()}
        optimizer = {**optimizer, "state": moments}
    return replace(state, parameters=_parts(state.parameters, own), best=best, optimizer=optimizer)


def _parts(tensors: dict[str, Tensor], own: dict[str, Any]) -> dict[str, Tensor]:
    return {name: _part(value, own[name]) for name, value in tensors.items()}


def _part(value: Any, like: Any) -> Any:
    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
