r"""
Distributionally robust weights on a simplex
============================================

A model that does well on average may do badly on a small group. In distributionally robust training, an adversary
chooses the weights of the groups, and the model is trained against these weights:

.. math::

    \min_x \sum_k y_k^*(x)\, \ell_k(x),
    \qquad
    y^*(x) = \operatorname*{argmax}_{y \ge 0,\ \sum y = 1} \sum_k y_k\, \ell_k(x) - \tfrac{\rho}{2} |y - p|^2 ,

where :math:`\ell_k` is the mean loss of group k and p contains the fractions of the groups. A large :math:`\rho`
gives the average loss, a small one the loss of the worst group. Such a min-max game is a bilevel problem.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as logistic

import bilevel

# %%
# Three groups with different boundaries; the smallest has 30 of 630 rows.
generator = torch.Generator().manual_seed(0)
sizes, angles = (500, 100, 30), (0.0, 0.6, 1.3)
groups = []
for size, angle in zip(sizes, angles, strict=True):
    points = torch.randn(size, 2, generator=generator).double()
    normal = torch.tensor([math.cos(angle), math.sin(angle)]).double()
    groups.append((points, (points @ normal > 0).double()))
shares = torch.tensor(sizes).double() / sum(sizes)


def losses(x):
    return torch.stack([logistic(points @ x, labels) for points, labels in groups])


def robust(rho):
    return bilevel.Problem(
        upper=lambda x, y: y @ losses(x),
        lower=lambda x, y: rho / 2 * (y - shares).square().sum() - y @ losses(x),
        constraint=bilevel.sets.Simplex(1.0),
        y0=shares,
    )


# %%
# From the average to the worst case.
strengths = (10.0, 1.0, 0.3, 0.1)
found = {rho: bilevel.minimize(robust(rho), torch.zeros(2).double(), steps=400) for rho in strengths}
print("rho     loss of each group          weights of the adversary")
for rho, solution in found.items():
    loss, weights = losses(solution.x).tolist(), bilevel.solve_lower(robust(rho), solution.x).y.tolist()
    print(f"{rho:<6}", " ".join(f"{v:8.3f}" for v in loss), "  ", " ".join(f"{v:6.3f}" for v in weights))

# %%
# The smaller rho, the more weight the adversary gives to the worst group.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for k, size in enumerate(sizes):
    left.plot(strengths, [float(losses(s.x)[k]) for s in found.values()], marker="o", label=f"{size} rows")
    right.plot(strengths, [float(s.y[k]) for s in found.values()], marker="o", label=f"{size} rows")
left.set(xscale="log", xlabel="rho", ylabel="mean loss", title="loss of each group")
right.set(xscale="log", xlabel="rho", ylabel="weight", title="weight given by the adversary")
left.legend(frameon=False)
plt.show()

# %%
# With rho = 0.03 the weights jump between groups, and 400 steps of DMLCBO make no progress: all losses stay near their
# initial value log 2 = 0.693. The default solver gets through.
for solver in (bilevel.DMLCBO(), "auto"):
    solution = bilevel.minimize(robust(0.03), torch.zeros(2).double(), solver=solver, steps=400)
    print("rho = 0.03:", solution.status.name, [round(v, 3) for v in losses(solution.x).tolist()])
