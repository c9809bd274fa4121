"""The SVM head against qpth and cvxpylayers, and against the network below it, in one process and one run.

`python -m benchmarks few_shot_head`. 32 tasks of 5 ways, 5 shots and 75 queries with 100 features: forward and
hypergradient, from features to the derivative in them, in alternating blocks on one thread. All are compared at
the same measured residual max |y - P(y - gradient)| <= 1e-6: each peer gets the loosest tolerance of its own (qpth's
eps is no residual) that reaches it, or its tightest. The peers run in an environment of their own that sees this one's
packages, made on first use under build/peers.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from bilevel.few_shot import ConvNet, SVMHead
from bilevel.few_shot.svm_dual import Dual

from .environments import ROOT, peer_python
from .harness import Row, reason_of

TASKS, WAYS, SHOTS, QUERIES, FEATURES, C, RIDGE = 32, 5, 5, 15, 100, 10.0, 1e-3
RESIDUAL = 1e-6
ROUNDS = 10


def tasks(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features in float64: classes apart, as after training, or all images alike, as in an untrained network."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(TASKS, *shape, generator=generator, dtype=torch.float64)

    labels = torch.arange(WAYS).repeat_interleave(SHOTS).expand(TASKS, -1)
    centres, support, query = draw(WAYS, FEATURES), draw(WAYS * SHOTS, FEATURES), draw(WAYS * QUERIES, FEATURES)
    if kind == "clustered":
        return centres.repeat_interleave(SHOTS, 1) + 0.5 * support, labels, query
    common = 3 * draw(1, FEATURES)
    return common + 0.1 * support, labels, common + 0.1 * query


class Machine:
    """The same layer with its dual solved by someone else: solve(G) -> y, differentiable."""

    def __init__(self, solve: Callable[[Tensor], Tensor], head: SVMHead) -> None:
        self.solve, self.head = solve, head

    def __call__(self, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
        coded = self.head.coded(labels)
        return self.head.scores(coded, coded.columns(self.solve(self.head.quadratic(coded, support))), support, query)


def forward_and_back(layer: Callable[..., Tensor], support: Tensor, labels: Tensor, query: Tensor) -> None:
    point = support.detach().requires_grad_(), query.detach().requires_grad_()
    torch.autograd.grad(layer(point[0], labels, point[1]).square().mean(), point)


def qpth_of(eps: float) -> Callable[[Tensor], Tensor]:
    from qpth.qp import QPFunction

    eye, one = torch.eye(WAYS * SHOTS, dtype=torch.float64), torch.ones(WAYS * SHOTS, dtype=torch.float64)
    none = torch.empty(0, dtype=torch.float64)
    inequalities, bounds = torch.cat([eye, -eye]), torch.cat([C * one, 0 * one])
    layer = QPFunction(verbose=-1, eps=eps, maxIter=50)
    return lambda G: layer(G, -one.expand(len(G), -1), inequalities, bounds, none, none)


def cvxpylayers_of(tolerance: float) -> Callable[[Tensor], Tensor]:
    import cvxpy
    from cvxpylayers.torch import CvxpyLayer

    size = WAYS * SHOTS
    root, y = cvxpy.Parameter((size, size)), cvxpy.Variable(size)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(root @ y) / 2 - cvxpy.sum(y)), [y >= 0, y <= C])
    layer = CvxpyLayer(problem, parameters=[root], variables=[y])
    arguments = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)
    one_thread = {"solve_method": "Clarabel", "n_jobs_forward": 1}
    return lambda G: layer(torch.linalg.cholesky(G).mT, solver_args={**one_thread, **arguments})[0]


def loosest(
    make: Callable[[float], Callable[[Tensor], Tensor]], dual: Dual
) -> tuple[Callable[[Tensor], Tensor], float]:
    """The peer with the loosest tolerance whose answers are as good as asked for, or its tightest, and its residual."""
    for exponent in range(2, 17, 2):
        solve = make(10.0**-exponent)
        with torch.no_grad():
            y = solve(dual.quadratic)
        residual = float(dual.residual(dual.coded.columns(y)).max())
        if residual <= RESIDUAL:
            break
    return solve, residual


def against(kind: str) -> Iterator[Row]:
    """Their time over ours; both are the best of several alternating rounds."""
    support, labels, query = tasks(kind)
    head = SVMHead(WAYS, C=C, ridge=RIDGE, tol=RESIDUAL)
    dual = Dual(head.coded(labels), head.quadratic(head.coded(labels), support))
    ours = float(dual.solve(tol=RESIDUAL).residual.max())
    peers: dict[str, tuple[Callable[..., Tensor], float]] = {}
    for name, make in (("qpth", qpth_of), ("cvxpylayers", cvxpylayers_of)):
        try:
            solve, residual = loosest(make, dual)
            peers[name] = Machine(solve, head), residual
        except Exception as error:  # one that fails does not lose the other
            yield Row(f"{name}, {kind} features: does not run", math.nan, "", reason_of(error))
    layers: list[Callable[..., Tensor]] = [head, *(layer for layer, _ in peers.values())]
    best = fastest([lambda layer=layer: forward_and_back(layer, support, labels, query) for layer in layers])
    for (name, (_, residual)), seconds in zip(peers.items(), best[1:], strict=True):
        note = f"{seconds * 1e3:.1f} ms / {best[0] * 1e3:.1f} ms at residuals {residual:.0e} and {ours:.0e}"
        yield Row(f"{name} / SVMHead, {kind} features", seconds / best[0], ">= 5", note)


def share_of_the_network() -> Row:
    """The head's time over that of the paper's network, forward and backward on the images of the same tasks."""
    torch.manual_seed(0)
    network = ConvNet()
    images = torch.rand(TASKS * WAYS * (SHOTS + QUERIES), 1, 28, 28)
    support, labels, query = (part.float() if part.is_floating_point() else part for part in tasks("clustered"))
    head = SVMHead(WAYS, C=C, ridge=RIDGE, tol=RESIDUAL)

    def pass_through_the_network() -> None:
        torch.autograd.grad(network(images).square().mean(), list(network.parameters()))

    below, above = fastest([pass_through_the_network, lambda: forward_and_back(head, support, labels, query)], rounds=3)
    note = f"{above * 1e3:.1f} ms / {below * 1e3:.0f} ms for {len(images)} images"
    return Row("SVMHead / ConvNet", above / below, "<= 0.2", note)


def fastest(functions: list[Callable[[], object]], rounds: int = ROUNDS, share: float = 0.2) -> list[float]:
    """The best time of each over alternating rounds in which each runs for `share` seconds, after one warm-up."""
    for function in functions:
        function()
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            began = time.perf_counter()
            while (start := time.perf_counter()) - began < share:
                function()
                best[i] = min(best[i], time.perf_counter() - start)
    return best


def rows() -> list[Row]:
    """All ratios, measured in the peers' environment."""
    try:  # qpth forbids NumPy 2 without need
        python = peer_python("qp", ("--no-deps", "qpth==0.0.18"), ("cvxpylayers==1.2.0", "diffcp==1.1.9"))
    except subprocess.CalledProcessError:
        python = Path(sys.executable)  # without the peers, which will say so
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [python, "-W", "ignore", "-m", "benchmarks.few_shot_head"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [Row(*row) for row in json.loads(done.stdout.splitlines()[-1])]


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = [*against("clustered"), *against("alike"), share_of_the_network()]
    sys.stdout.write(json.dumps([[row.name, row.ratio, row.bound, row.note] for row in found]) + "\n")
