"""Speed of the projections: against torch.sort, a NumPy sort version, jaxopt, and the Jacobian against its projection.

`python -m benchmarks sets`. Times are the best of several alternating runs on one thread; for the Jacobian products the
ratio is the median over alternating blocks, which a busy machine disturbs least. jaxopt runs in its own environment
(made on first use under build/peers), on the same data, jitted and compiled before the clock starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from bilevel import sets

from .environments import JAXOPT, peer_python
from .harness import Row, best_times, collected, ratio, seconds


def compare(name: str, ours: Callable[[], object], other: Callable[[], object], bound: float) -> Row:
    """Our time over the other's, best of both in alternation, and the largest value that is good enough."""
    mine, theirs = best_times(ours, other)
    return _row(name, mine, theirs, bound)


def _row(name: str, ours: float, other: float, bound: float) -> Row:
    return Row(name, ours / other, f"<= {bound:g}", f"{ours * 1e3:.3f} ms / {other * 1e3:.3f} ms")


def _data(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def against_sort() -> Iterator[Row]:
    """One vector of 1e6: at most 0.3 of the time that sorting it takes, for sparse and for dense answers."""
    z = _data(1_000_000)
    for radius in (1.0, 1e5):
        for make in (sets.L1Ball, sets.Simplex):
            Y = make(radius)
            yield compare(f"{Y} on 1e6 / torch.sort", lambda Y=Y: Y.project(z), z.sort, 0.3)


def numpy_simplex(z: np.ndarray, radius: float = 1.0) -> np.ndarray:
    """The textbook projection on the simplex by sorting."""
    ordered = np.sort(z)[::-1]
    excess = np.cumsum(ordered) - radius
    k = np.flatnonzero(ordered * np.arange(1, len(z) + 1) > excess)[-1]
    return np.maximum(z - excess[k] / (k + 1), 0)


def numpy_l1_ball(z: np.ndarray, radius: float = 1.0) -> np.ndarray:
    """The textbook projection on the l1 ball by sorting."""
    magnitude = np.abs(z)
    return z if magnitude.sum() <= radius else np.sign(z) * numpy_simplex(magnitude, radius)


def against_numpy() -> Iterator[Row]:
    """No slower than NumPy from 1e5 on."""
    for n in (100_000, 1_000_000):
        z = _data(n)
        array = z.numpy()
        for Y, peer in ((sets.L1Ball(), numpy_l1_ball), (sets.Simplex(), numpy_simplex)):
            name = f"{Y} on {n:.0e} / NumPy sort version"
            yield compare(name, lambda Y=Y, z=z: Y.project(z), lambda p=peer, a=array: p(a), 1.0)


def _sets_that_sort_search_or_factor() -> Iterator[tuple[sets.ConvexSet, torch.Tensor]]:
    """Sets with a point each, outside of the set."""
    n = 10_000
    z, weight = _data(n), _data(n).abs() + 0.1
    yield sets.L1Ball(10.0), z
    yield sets.Simplex(10.0), z
    yield sets.L1Ball(10.0), z[:1000]
    yield sets.Simplex(10.0), z[:1000]
    yield sets.L1Ball(), _data(1000, 784)
    yield sets.Simplex(), _data(1000, 784)
    yield sets.L1Ball(), _data(1_000_000)
    yield sets.Simplex(), _data(1_000_000)
    yield sets.WeightedL1Ball(weight, 10.0), z
    yield sets.GroupL1Ball(10, 10.0), z
    yield sets.ElasticNetBall(1.0, 10.0), z
    yield sets.CappedSimplex(0.1, 10.0), z
    yield sets.BoxSection(-1.0, 1.0, weight, 0.0), z
    yield sets.MonotoneCone(), z
    yield sets.MonotoneCone(), _data(100, 60)
    yield sets.Permutahedron(_data(n).flip(0)), z
    yield sets.Permutahedron(_data(60).flip(0)), _data(100, 60)
    yield sets.AffineSet(_data(50, 500)), z[:500]
    yield from _sets_of_matrices()
    yield from _sets_that_call_a_solver()


def _sets_of_matrices() -> Iterator[tuple[sets.ConvexSet, torch.Tensor]]:
    for shape in ((100, 12, 12), (100, 100)):
        z = _data(*shape)
        yield sets.PSDCone(), z
        yield sets.NuclearNormBall(5.0), z
        yield sets.SpectralNormBall(2.0), z
    plan = _data(12, 8).abs().double()
    yield sets.TransportPolytope(plan.sum(1), plan.sum(0)), _data(12, 8).double()
    yield sets.BirkhoffPolytope(12), _data(20, 12, 12).double()
    yield sets.BirkhoffPolytope(60), _data(60, 60).double()


class Alternating:
    """A set asked at two far points in turn, so that no answer is a warm start for the next."""

    def __init__(self, Y: sets.ConvexSet) -> None:
        self.Y, self._sign = Y, 1.0

    def project(self, z: torch.Tensor) -> torch.Tensor:
        self._sign = -self._sign
        return self.Y.project(self._sign * z)

    def jacobian(self, z: torch.Tensor) -> sets.ProjectionJacobian:
        self._sign = -self._sign
        return self.Y.jacobian(self._sign * z)

    def __repr__(self) -> str:
        return f"{self.Y} cold"


def _sets_that_call_a_solver() -> Iterator[tuple[sets.ConvexSet, torch.Tensor]]:
    z = 3 * _data(60).double()
    rows = _data(90, 60).double()
    polyhedron = sets.Polyhedron(rows, rows.norm(dim=1), _data(5, 60).double(), torch.zeros(5).double())
    yield polyhedron, z
    yield Alternating(polyhedron), z  # type: ignore[misc]
    yield sets.Intersection(sets.L2Ball(4.0), sets.Box(-0.5, 1.0), sets.HalfSpace(rows[0], 0.1)), z


def jacobian_products() -> Iterator[Row]:
    """One jacobian(z).apply(v) costs at most twice one project(z), for sets that sort, search or factor.

    Both start from z alone: the Jacobian's time includes finding the face. Points without gradients.
    """
    for Y, z in _sets_that_sort_search_or_factor():
        v = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
        name = f"{Y} {tuple(z.shape)}: jacobian(z).apply(v) / project(z)"
        product, projection = (lambda Y=Y, z=z, v=v: Y.jacobian(z).apply(v)), (lambda Y=Y, z=z: Y.project(z))
        yield Row(name, ratio(product, projection), "<= 2", f"project: {seconds(projection) * 1e3:.3f} ms")


PEER_WORKER = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import jax, numpy as np
from jaxopt import projection

kind, path = sys.argv[1:]
z = jax.numpy.asarray(np.load(path))
one = {"L1Ball": projection.projection_l1_ball, "Simplex": projection.projection_simplex}[kind]
project = jax.jit(one if z.ndim == 1 else jax.vmap(one))
answer = project(z).block_until_ready()
best, start, rounds = float("inf"), time.perf_counter(), 0
while rounds < 5 or (time.perf_counter() - start < 2.0 and rounds < 2000):
    begin = time.perf_counter()
    project(z).block_until_ready()
    best, rounds = min(best, time.perf_counter() - begin), rounds + 1
np.save(path, np.asarray(answer))
print(json.dumps(best))
"""


def against_jaxopt() -> Iterator[Row]:
    """At least 5 times faster than jaxopt on long vectors and batches, twice at 1e3; the answers agree."""
    python = peer_python("jaxopt", JAXOPT, shared=False)
    one_thread = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }
    for shape, bound in (((1_000,), 1 / 2), ((100_000,), 1 / 5), ((1_000_000,), 1 / 5), ((1_000, 784), 1 / 5)):
        for make in (sets.L1Ball, sets.Simplex):
            z, Y = _data(*shape), make()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "z.npy"
                np.save(path, z.numpy())
                command = [python, "-c", PEER_WORKER, make.__name__, str(path)]
                done = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=True)
                other, answer = json.loads(done.stdout), torch.from_numpy(np.load(path))
            torch.testing.assert_close(Y.project(z), answer, rtol=1e-3, atol=1e-4)
            (ours,) = best_times(lambda Y=Y, z=z: Y.project(z))
            yield _row(f"{Y} on {shape} / jaxopt, jitted", ours, other, bound)


def rows() -> list[Row]:
    """All ratios."""
    return [*against_sort(), *against_numpy(), *collected("jaxopt", against_jaxopt()), *jacobian_products()]
