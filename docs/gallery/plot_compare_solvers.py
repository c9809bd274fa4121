r"""
All solvers on one problem
==========================

All solvers of the library are called in the same way. Here each has the same budget of 1,500 gradients and products, on
a sparse regression with learned row weights,

.. math::

    \min_x \frac1m |A_v y^*(x) - b_v|^2,
    \qquad
    y^*(x) = \operatorname*{argmin}_{|y|_1 \le 1} \frac1n \sum_i \sigma(x_i) (a_i \cdot y - b_i)^2 + c |y|^2 .

A solver that does not support the problem says why. One problem is not a ranking: see :doc:`/choosing-a-solver`.
"""

import matplotlib.pyplot as plt
import torch

import bilevel

# %%
# 60 training rows, a third of them corrupted, and 30 validation rows.
generator = torch.Generator().manual_seed(0)
A = torch.randn(90, 10, generator=generator).double()
truth = torch.tensor([0.7, -0.3] + 8 * [0.0]).double()
b = A @ truth + 0.05 * torch.randn(90, generator=generator).double()
b[:20] = 2 * torch.randn(20, generator=generator).double()
rows, valid = slice(0, 60), slice(60, 90)

problem = bilevel.Problem(
    upper=lambda x, y: (A[valid] @ y - b[valid]).square().mean(),
    lower=lambda x, y: (x.sigmoid() * (A[rows] @ y - b[rows]).square()).mean() + 1e-2 * y @ y,
    constraint=bilevel.sets.L1Ball(radius=1.0),
    x0=torch.zeros(60).double(),
    y0=torch.zeros(10).double(),
)

# %%
# The solvers run with their defaults, except for some upper steps: x enters through means over 60 rows, and solvers
# without adaptive steps need a longer one. These steps (3 and 10) were set by hand and not searched for. The order
# below holds for these settings on this problem.
solvers = [
    bilevel.DMLCBO(),
    bilevel.solvers.ProjectedSOBA(upper_step=3.0),
    bilevel.solvers.PenaltyMomentum(upper_step=3.0),
    bilevel.solvers.MEHA(upper_step=3.0),
    bilevel.solvers.BiCGAFFA(upper_step=3.0),
    bilevel.solvers.LVHBA(),
    bilevel.solvers.SIGD(upper_step=10.0),
    bilevel.solvers.DSBLO(upper_step=10.0),
    bilevel.solvers.VPBGD(upper_step=3.0),
    bilevel.Approx(),
    bilevel.Implicit(),
    bilevel.solvers.RMDPCD(),
    bilevel.solvers.AiPOD(),
    bilevel.solvers.EAiPOD(),
    bilevel.solvers.IGAL(),
]
result = bilevel.compare(problem, solvers, bilevel.run.Budget(cost=1500), points=8)
print(result)

# %%
# F at the solved lower level against the cost.
figure, axis = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
for index, name in enumerate(result.solutions):
    line = result.of(name)
    axis.plot([row.cost for row in line], [row.value for row in line], "-" if index < 10 else "--", label=name)
axis.set(xlabel="gradients and products", ylabel="F(x)", title="F against cost, all solvers that support the problem")
axis.legend(frameon=False, ncols=2, fontsize=8)
plt.show()
