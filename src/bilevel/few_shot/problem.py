"""A batch of few-shot tasks as a bilevel problem: x a network's parameters, y the dual variables of all tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import InvalidInputError, InvalidTypeError
from ..linearization import Linearization
from ..problem import Problem
from ..ranks import Ranks
from ..sets.base import ConvexSet
from ..spaces import Space, Vector, leaves, like, sum_whole, tree_map
from .episodes import Tasks
from .inputs import TaskBatch, check_finite, check_network_output, check_same_dtype, check_tasks
from .svm_dual import Dual
from .svm_head import SVMHead
from .sync_batch_norm import shared_statistics

Parameters = dict[str, Tensor]


@dataclass
class Features:
    """What the network makes of the images at one x: of all tasks, and of this rank's own tasks with their graph."""

    parameters: list[Tensor]
    own: tuple[Tensor, Tensor]  # support and query
    support: Tensor  # (t, n, d)
    query: Tensor  # (t, m, d)
    dual: Dual


def image_features(network: Callable[[Tensor], Tensor], tasks: TaskBatch, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The features of support (t, n, d) and query (t, m, d) examples in one pass; zeros for support that is not there.

    Images where the mask is false are ignored, also in the statistics of a batch.
    """
    support = tasks.support.flatten(0, 1) if mask is None else tasks.support[mask]
    images = torch.cat([support, tasks.query.flatten(0, 1)])
    features = network(images)
    check_network_output(features, len(images))
    features = features.flatten(1)
    check_finite("the output of the network", features)
    found, query = features.split([len(support), len(images) - len(support)])
    if mask is None:
        placed = found.unflatten(0, tasks.support.shape[:2])
    else:
        placed = found.new_zeros(*mask.shape, found.shape[-1]).masked_scatter(mask.unsqueeze(-1), found)
    return placed, query.unflatten(0, tasks.query.shape[:2])


def check_network_and_head(network: Any, head: Any) -> None:
    """Raise if one of them is not of its class."""
    if not isinstance(network, nn.Module):
        raise InvalidTypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
    if not isinstance(head, SVMHead):
        raise InvalidTypeError(f"head must be an SVMHead, got {type(head).__name__}")


class FewShotProblem(Problem):
    """Few-shot learning as a bilevel problem: features for support vector machines that classify the queries of tasks.

        f(x, y) = mean over tasks and queries of  cross-entropy(scores(x, y), label)
        g(x, y) = sum over tasks of  1/2 <y, G(x) y> - <b, y>                       (see `coding` for G, b and the set)

    x is {name: parameter} of the network. y holds the dual variables in float64, of shape (t, n) for centred codes and
    (t, n, k) for Crammer-Singer, with one factor of the set per task. The network runs once for each x: g and its
    products in y need only the Gram matrices, and a hypergradient is one vector-Jacobian product through the network.

    Several ranks divide the tasks: each passes its own images through the network and solves their lower levels.
    Features, dual variables and derivatives in x are then summed, so that every rank has those of all tasks and a
    solver takes the same steps on all ranks.

    Parameters
    ----------
    network
        A module from images (N, ...) to features (N, d). It is used in its current mode, training or evaluation, and
        not changed: batch normalisation uses the support and query images of all tasks together and works on copies of
        the running statistics (`buffers`); dropout draws the same mask at every x (`seed`), so that f and g are
        functions.
    head
        The support vector machine.
    tasks
        `support` (t, n, ...), `support_labels` (t, n), `query` (t, m, ...), `query_labels` (t, m).
    seed
        The seed of random layers such as dropout.
    ranks
        The processes that divide the tasks; network, head and tasks are the same on all of them.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 5.2; Lee, Maji, Ravichandran & Soatto (2019).

    Examples
    --------
    >>> import bilevel
    >>> from types import SimpleNamespace
    >>> pixels, labels = torch.eye(4).reshape(1, 4, 4), torch.tensor([[0, 1, 0, 1]])
    >>> tasks = SimpleNamespace(support=pixels, support_labels=labels, query=pixels, query_labels=labels)
    >>> problem = FewShotProblem(torch.nn.Linear(4, 3), SVMHead(ways=2), tasks)
    >>> bilevel.minimize(problem, solver=bilevel.DMLCBO(), steps=20).x["weight"].shape
    torch.Size([3, 4])
    """

    def __init__(
        self, network: nn.Module, head: SVMHead, tasks: TaskBatch, *, seed: int = 0, ranks: Ranks | None = None
    ) -> None:
        check_network_and_head(network, head)
        self.network = network
        self.head = head
        self.tasks = tasks
        self.seed = seed
        mask = check_tasks(tasks, head.ways)
        check_same_dtype(network, tasks.query)
        self.mask = mask
        self.coded = head.coded(tasks.support_labels, mask)
        self._latest: Features | None = None
        self.buffers: Parameters = {}  # running statistics and the like after the latest pass of all images
        x0 = {name: value.detach().clone() for name, value in network.named_parameters() if value.requires_grad}
        if not x0:
            raise InvalidInputError("network has no parameters that require a gradient: there is nothing to learn")
        super().__init__(
            self._plain_upper,
            self._plain_lower,
            self.coded.constraint(),
            x0=x0,
            y0=self.coded.plain(torch.zeros_like(self.coded.indicator)),
            ranks=ranks,
        )
        rank, size, count = self.ranks.rank, self.ranks.size, len(tasks.support)
        self.own: slice[int, int, Any] = slice(count * rank // size, count * (rank + 1) // size)
        """The tasks of this rank."""

    def y_space(self, constraint: ConvexSet) -> Space:
        """One factor per task."""
        return Space(self.coded.plain(self.coded.indicator).ndim - 1)

    def linearize(self, x: Vector, y: Vector, batch: Any = None) -> Linearization:
        return FewShotLinearization(self, x, y, batch)

    def features(self, x: Vector) -> Features:
        """The features at x; the latest ones are kept, so that many y at one x cost one pass of the network."""
        if self._latest is not None and _same(self._latest.parameters, leaves(x)):
            return self._latest
        self._latest = None  # two graphs at once would need twice the memory
        point = tree_map(lambda u: u.detach().clone().requires_grad_(), x)
        with torch.enable_grad():
            own = self._pass(point)
        support, query = (part.detach() for part in own)
        if self.ranks.size > 1:
            both = self._gather(torch.cat([support, query], 1))
            support, query = (part.contiguous() for part in both.split([support.shape[1], query.shape[1]], 1))
        dual = Dual(self.coded, self.head.quadratic(self.coded, support))
        self._latest = Features(leaves(point), own, support, query, dual)
        return self._latest

    def forget(self) -> None:
        """Let go of the features that are kept, and of their graph."""
        self._latest = None

    def pull_back(self, features: Features, support: Tensor, query: Tensor) -> list[Tensor]:
        """The derivative in the parameters of <support, support features> + <query, query features>."""
        parts = torch.autograd.grad(
            features.own,
            features.parameters,
            [support.to(features.support)[self.own], query.to(features.query)[self.own]],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return sum_whole(list(parts), [False] * len(parts), self.ranks)

    def solve(self, x: Vector) -> Tensor:
        """y*(x) by the head's own solver; every rank solves its own tasks."""
        dual = self.features(x).dual
        if self.ranks.size > 1:
            dual = dual.take(self.own)
        y = dual.solve(tol=self.head.tol).y
        return self.coded.plain(y if self.ranks.size == 1 else self._gather(y))

    def _gather(self, own: Tensor) -> Tensor:
        """What the ranks have of their own tasks (t, ...), put together."""
        whole = own.new_zeros(len(self.tasks.support), *own.shape[1:])
        whole[self.own] = own
        return self.ranks.sum(whole)

    @torch.no_grad()
    def loss_and_accuracy(self, x: Vector, y: Vector) -> tuple[float, float]:
        """On the queries."""
        features = self.features(x)
        scores = self._scores(y, features.support, features.query)
        right = scores.argmax(-1) == self.tasks.query_labels
        return float(self._loss(scores)), float(right.double().mean())

    def _pass(self, x: Any) -> tuple[Tensor, Tensor]:
        """One pass of the images of this rank's tasks through the network at x, and the buffers after it."""
        buffers = {name: value.clone() for name, value in self.network.named_buffers()}
        tasks, mask = self.tasks, None if self.mask is None else self.mask[self.own]
        parts = (tasks.support, tasks.support_labels, tasks.query, tasks.query_labels)

        def network(images: Tensor) -> Tensor:
            with torch.random.fork_rng(devices=[]), shared_statistics(self.network, self.ranks):
                _seed(images.device, (self.seed + self.own.start) % (1 << 63))
                return functional_call(self.network, {**x, **buffers}, (images,))

        features = image_features(network, Tasks(*(part[self.own] for part in parts)), mask)
        self.buffers = buffers
        return features

    def _scores(self, y: Any, support: Tensor, query: Tensor) -> Tensor:
        return self.head.scores(self.coded, self.coded.columns(y), support, query)

    def _loss(self, scores: Tensor, tasks: slice = slice(None)) -> Tensor:
        """The mean over the queries of these tasks."""
        return nn.functional.cross_entropy(scores.flatten(0, -2), self.tasks.query_labels[tasks].flatten().long())

    def _plain_upper(self, x: Any, y: Any) -> Tensor:
        """This rank's part of f, as autograd can follow it."""
        coded = self.coded.take(self.own)
        scores = self.head.scores(coded, coded.columns(y[self.own]), *self._pass(x))
        return self._loss(scores, self.own) * (len(scores) / len(self.tasks.query_labels))

    def _plain_lower(self, x: Any, y: Any) -> Tensor:
        """This rank's part of g, as autograd can follow it."""
        coded = self.coded.take(self.own)
        return Dual(coded, self.head.quadratic(coded, self._pass(x)[0])).value(coded.columns(y[self.own]))

    def __repr__(self) -> str:
        tasks, support, query = *self.tasks.support.shape[:2], self.tasks.query.shape[1]
        return f"FewShotProblem({tasks} tasks of {support} support and {query} query examples, {self.head})"


class FewShotLinearization(Linearization):
    """f and g of a `FewShotProblem` at one point: one pass of the network per x, Gram matrices for everything in y."""

    problem: FewShotProblem
    y: Any

    @cached_property
    def _features(self) -> Features:
        return self.problem.features(self.x)

    @cached_property
    def _columns(self) -> Tensor:
        return self.problem.coded.columns(self.y)

    @cached_property
    def _upper(self) -> tuple[Tensor, ...]:
        """f, and its derivatives in y and in the support and query features."""
        self.problem.costs.upper_gradients += 1
        point = [u.detach().requires_grad_() for u in (self.y, self._features.support, self._features.query)]
        with torch.enable_grad():
            loss = self.problem._loss(self.problem._scores(*point))
        return loss.detach(), *torch.autograd.grad(loss, point)

    @property
    def upper_grad_x(self) -> Vector:
        return self._upper_gradient_x

    @property
    def upper_grad_y(self) -> Vector:
        return self._upper[1]

    @cached_property
    def _upper_gradient_x(self) -> Vector:
        return self._pull_back(self._upper[2], self._upper[3])

    def solve_on_face(self, face: Any, v: Any) -> Vector:
        """One small system per task, all factored at once."""
        coded = self.problem.coded
        return coded.plain(self._features.dual.on_face(coded.columns(face.support), coded.columns(v)))

    def reduced_gradient(self, w: Any) -> Vector:
        """Both terms in one pass back through the network."""
        self.problem.costs.cross_products += 1
        return self._pull_back(self._upper[2] - self._cross(w), self._upper[3])

    def _pull_back(self, support: Tensor, query: Tensor | None = None) -> Vector:
        query = torch.zeros_like(self._features.query) if query is None else query
        return like(self.x, self.problem.pull_back(self._features, support, query))

    def _cross(self, w: Any) -> Tensor:
        """The derivative of <w, grad_y g> = <A'a, B'a> in the features a, with A = alpha(w), B = alpha(y)."""
        one, other = (self.problem.coded.alpha(part) for part in (self.problem.coded.columns(w), self._columns))
        a = self._features.support.double()
        return (one @ (other.mT @ a) + other @ (one.mT @ a)).to(self._features.support)

    def _upper_value(self) -> Tensor:
        return self._upper[0]

    def _upper_gradients(self) -> tuple[Vector, Vector]:
        return self._upper_gradient_x, self._upper[1]

    def _lower_value(self) -> Tensor:
        return self._features.dual.value(self._columns)

    def _lower_gradient_x(self) -> Vector:
        return self._pull_back(0.5 * self._cross(self.y))

    def _lower_gradient_y(self) -> Vector:
        return self.problem.coded.plain(self._features.dual.gradient(self._columns))

    def _lower_hvp(self, v: Any) -> Vector:
        return self.problem.coded.plain(self._features.dual.quadratic @ self.problem.coded.columns(v))

    def _lower_cross(self, v: Any) -> Vector:
        return self._pull_back(self._cross(v))


def _seed(device: torch.device, seed: int) -> None:
    """Seed random layers on this device. `torch.manual_seed` looks at all kinds of devices: a millisecond each time."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(u, v) for u, v in zip(a, b, strict=True))
