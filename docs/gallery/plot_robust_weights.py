r"""
Distributionally robust weights on a simplex
============================================

A model that does well on average may fail a small group. Let an opponent weight the groups, within reason, and train
against that:

.. math::

    \min_x \sum_k y_k^*(x)\, \ell_k(x),
    \qquad
    y^*(x) = \operatorname*{argmax}_{y \ge 0,\ \sum y = 1} \sum_k y_k\, \ell_k(x) - \tfrac{\rho}{2} |y - p|^2 ,

:math:`\ell_k` the mean loss of group k and p the shares of the groups. A large :math:`\rho` gives the average loss
back, a small one the worst group's. A game with a minimum and a maximum is a bilevel problem whose lower level answers.
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
print("rho     loss of each group          weights of the opponent")
for rho, solution in found.items():
    loss, weights = losses(solution.x).tolist(), bilevel.solve_lower(robust(rho), solution.x).y.tolist()
    print(f"{rho:<6}", " ".join(f"{v:8.3f}" for v in loss), "  ", " ".join(f"{v:6.3f}" for v in weights))

# %%
# The smaller rho, the more the opponent looks at the group that does worst.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for k, size in enumerate(sizes):
    left.plot(strengths, [float(losses(s.x)[k]) for s in found.values()], marker="o", label=f"{size} rows")
    right.plot(strengths, [float(s.y[k]) for s in found.values()], marker="o", label=f"{size} rows")
left.set(xscale="log", xlabel="rho", ylabel="mean loss", title="loss of each group")
right.set(xscale="log", xlabel="rho", ylabel="weight", title="weight that the opponent gives it")
left.legend(frameon=False)
plt.show()

# %%
# It does not go on like this. With rho = 0.03 the same 400 steps at the same settings get nowhere: all losses stay near
# log 2 = 0.693, where they begin. That run is left out of the picture, and why it fails was not looked into.
stuck = bilevel.minimize(robust(0.03), torch.zeros(2).double(), steps=400)
print("rho = 0.03:", stuck.status.name, [round(v, 3) for v in losses(stuck.x).tolist()])
