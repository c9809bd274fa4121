"""A batch of few-shot tasks of which every rank passes its own through the network.

    f, g   of all T tasks on every rank, from features that are gathered: one round of T (n + m) d numbers
    y*     of its own tasks on every rank, then gathered: one round of T n p numbers
    d/dx   of its own tasks' features on every rank, then summed: one round of as many numbers as x has

The dual variables are few, and every rank holds those of all tasks. So whatever a solver does with them, norms, step
sizes, stopping, draws, is done alike on all ranks, and its state is that of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..applications.few_shot.dual import Dual
from ..applications.few_shot.episodes import Tasks
from ..applications.few_shot.head import SVMHead
from ..applications.few_shot.inputs import TaskBatch
from ..applications.few_shot.problem import Features, FewShotProblem
from ..errors import NotConverged, NotFinite
from ..spaces import Vector, leaves, like
from .batch_statistics import batch_normalisations, statistics_of_all
from .ranks import Ranks, RanksFailed


def part_of(count: int, ranks: Ranks) -> slice:
    """Which of `count` tasks this rank has; the first ranks have one more when they cannot be divided evenly."""
    each, more = divmod(count, ranks.size)
    start = ranks.rank * each + min(ranks.rank, more)
    return slice(start, start + each + (ranks.rank < more))


class SharedFewShotProblem(FewShotProblem):
    """A `FewShotProblem` of all tasks, whose images are divided among ranks by tasks.

    Parameters
    ----------
    network, head, tasks, seed
        As in `FewShotProblem`, the same on every rank: the tasks are those of all ranks.
    ranks
        Who shares the work.
    """

    def __init__(self, network: nn.Module, head: SVMHead, tasks: TaskBatch, *, ranks: Ranks, seed: int = 0) -> None:
        super().__init__(network, head, tasks, seed=seed)
        self.ranks, self.mine = ranks, part_of(len(tasks.support), ranks)

    def solve(self, x: Vector) -> Tensor:
        """y*(x): every rank solves its own tasks."""
        support = self.features(x).support.detach()[self.mine]
        whole = torch.zeros_like(self.coded.indicator)

        def solved() -> Tensor:
            coded = self.coded.take(torch.arange(len(whole), device=whole.device)[self.mine])
            return Dual(coded, self.head.quadratic(coded, support)).solve(tol=self.head.tol).y

        y, failure = tried(solved)
        if y is not None:
            whole[self.mine] = y
        flat = self.ranks.all_sum(torch.cat([whole.reshape(-1), whole.new_tensor([failure is not None])]))
        raise_together(self.ranks, "solving its tasks", failure, int(flat[-1]))
        return self.coded.plain(flat[:-1].reshape(whole.shape))

    def _forward(self, x: Any) -> Features:
        """One pass of this rank's images, and the features of all ranks."""
        return Features(leaves(x), *self._shared(like(x, _Summed.apply(self.ranks, *leaves(x)))))

    def _shared(self, x: Any) -> tuple[Tensor, Tensor]:
        tasks, mask = self.tasks, None if self.mask is None else self.mask[self.mine]
        own = Tasks(
            *(part[self.mine] for part in (tasks.support, tasks.support_labels, tasks.query, tasks.query_labels))
        )
        found, failure = tried(lambda: self.passed(x, own, mask, (self.seed + self.mine.start) % (1 << 63)))
        failures, width = self.ranks.total(failure is not None, 0 if found is None else found[0].shape[-1])
        raise_together(self.ranks, "passing images through the network", failure, int(failures))
        assert found is not None
        if width != self.ranks.size * found[0].shape[-1]:
            self.ranks.agree({"the number of features": found[0].shape[-1]}, "give every rank the same network")
        return _Gathered.apply(self.ranks, self.mine, len(tasks.support), *found)  # type: ignore[return-value]

    def call_network(self, values: Any, images: Tensor) -> Tensor:
        if not batch_normalisations(self.network):
            return super().call_network(values, images)
        with self.meeting():
            return super().call_network(values, images)

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Around a network in which the ranks meet: one that fails there cannot meet them again, and says so."""
        try:
            with statistics_of_all(self.network, self.ranks):
                yield
        except RanksFailed:
            raise
        except Exception as error:
            raise RanksFailed(f"rank {self.ranks.rank}, in the network: {error}") from error


class _Summed(torch.autograd.Function):
    """x forwards; backwards the sum of the ranks' derivatives, all tensors in one round."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *x: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(u.view_as(u) for u in x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        packed = ctx.ranks.all_sum(torch.cat([u.reshape(-1) for u in gradients]))
        parts = packed.split([u.numel() for u in gradients])
        return None, *(part.reshape(u.shape) for part, u in zip(parts, gradients, strict=True))


class _Gathered(torch.autograd.Function):
    """The features (t, n, d), (t, m, d) of this rank's tasks to those of all tasks; backwards this rank's part."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, mine: slice, count: int, support: Tensor, query: Tensor) -> tuple[Tensor, ...]:
        ctx.mine = mine
        whole = support.new_zeros(count, support.shape[1] + query.shape[1], support.shape[2])
        whole[mine] = torch.cat([support, query], 1)
        parts = ranks.all_sum(whole).split([support.shape[1], query.shape[1]], 1)
        return tuple(part.contiguous() for part in parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        return None, None, None, *(v[ctx.mine] for v in cotangents)


def tried(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What came of it, and what went wrong; a rank that has lost the others does not meet them again."""
    try:
        return work(), None
    except RanksFailed:
        raise
    except Exception as error:
        return None, error


def raise_together(ranks: Ranks, doing: str, failure: Exception | None, failures: int) -> None:
    """When some ranks have failed, the same error on all: NotFinite, NotConverged, or RanksFailed for all else."""
    if not failures:
        return
    if ranks.size == 1 and failure is not None:
        raise failure
    kinds = {kind.__name__: kind for kind in (NotFinite, NotConverged)}
    told = ranks.gather(None if failure is None else [type(failure).__name__, str(failure) or type(failure).__name__])
    named = {kinds.get(each[0], RanksFailed) for each in told if each}
    text = "; ".join(f"rank {rank}, {doing}: {each[1]}" for rank, each in enumerate(told) if each)
    raise (named.pop() if len(named) == 1 else RanksFailed)(text) from failure
