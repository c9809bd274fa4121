"""Run by `make package` with the installed wheel and its core dependencies: ten lines, sets, and a helpful refusal."""

import importlib.util

import torch

import bilevel
from bilevel import sets

assert importlib.util.find_spec("sklearn") is None, "this is not the core environment"

target = torch.tensor([0.5, -0.2])
problem = bilevel.Problem(
    upper=lambda x, y: (y - target).square().sum(),
    lower=lambda x, y: (y - x).square().sum(),
    constraint=sets.L1Ball(radius=1.0),
)
solution = bilevel.minimize(problem, torch.zeros(2), torch.zeros(2))
assert solution.status.ok, solution
assert torch.allclose(solution.y, target, atol=1e-3), solution.y

for convex_set in (sets.Simplex(), sets.Box(-1.0, 1.0), sets.L2Ball(1.0), sets.CappedSimplex(0.5), sets.PSDCone()):
    z = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    y = convex_set.project(z)
    assert convex_set.contains(y[0] if convex_set.event_ndim == 2 else y[0, 0]), convex_set
    y.square().sum().backward()
    assert z.grad is not None and z.grad.isfinite().all(), convex_set

try:
    bilevel.HyperCleaner().fit([[0.0], [1.0]], [0, 1])
except bilevel.MissingExtraError as error:
    assert "pip install" in str(error)
else:
    raise AssertionError("HyperCleaner worked without its dependencies")
print("core:", bilevel.__version__, "with torch", torch.__version__)
