r"""
A Stackelberg game: which toll earns most?
==========================================

Traffic of size 1 is distributed over four roads such that no driver gains by changing roads. A company charges tolls on
two of them. It moves first, and the drivers respond:

.. math::

    y^*(x) = \operatorname*{argmin}_{y \ge 0,\ \sum y = 1} \sum_i \tfrac12 c_i y_i^2 + (a_i + x_i) y_i,
    \qquad \max_{x \ge 0} \; x_1 y_1^* + x_2 y_2^* .

:math:`a_i` is the travel time on the empty road i and :math:`c_i` its increase with traffic. The (Wardrop) equilibrium
is the minimum of a convex function on a simplex. The revenue has kinks where a road becomes empty.
"""

import matplotlib.pyplot as plt
import torch

import bilevel

# %%
# Roads 1 and 2 are fast and have tolls; roads 3 and 4 are slow and free.
empty, growth = torch.tensor([0.2, 0.4, 1.0, 1.4]).double(), torch.tensor([1.0, 0.6, 1.0, 0.5]).double()
free = torch.zeros(2).double()


def drivers(x, y):
    return (growth * y.square() / 2).sum() + (empty + torch.cat([x, free])) @ y


problem = bilevel.Problem(
    upper=lambda x, y: -(x @ y[:2]),
    lower=drivers,
    constraint=bilevel.sets.Simplex(1.0),
    upper_constraint=bilevel.sets.NonNegative(),
    y0=torch.full((4,), 0.25).double(),
)

# %%
# Starting without tolls, the solver finds the maximum. Starting from a toll on road 2 so high that the road is empty,
# it cannot lower the toll again: the exact hypergradient is zero in that direction (erratum 9). Smoothing with a radius
# of the order of the distance to the kink takes the returning drivers into account, and ends near the maximum, up to
# the bias of the smoothing.
empty_road = torch.tensor([0.2, 1.3]).double()
smooth = bilevel.LinearSolve(smoothing=bilevel.hypergradients.Perturbed(radius=0.5))
runs = {
    "no tolls": (torch.zeros(2).double(), bilevel.DMLCBO()),
    "an empty road": (empty_road, bilevel.DMLCBO()),
    "an empty road, smoothed": (empty_road, bilevel.DMLCBO(hypergradient=smooth)),
}
paths = {}
for name, (start, solver) in runs.items():
    path = paths[name] = [start]
    keep = [lambda record, state, path=path: path.append(state.x.clone())]
    solution = bilevel.minimize(problem, start, solver=solver, steps=400, evaluate_every=10, callbacks=keep)
    revenue = -float(bilevel.upper_value(problem, solution.x))
    roads = [round(v, 3) for v in bilevel.solve_lower(problem, solution.x).y.tolist()]
    print(f"from {name}: tolls {[round(v, 3) for v in solution.x.tolist()]}, revenue {revenue:.4f}, traffic {roads}")

# %%
# The revenue, its plateau where road 2 is empty, and the three runs.
line = torch.linspace(0, 1.6, 21).double()
hill = [[-float(bilevel.upper_value(problem, torch.stack([u, v]), tol=1e-6)) for u in line] for v in line]
figure, axis = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
picture = axis.contourf(line, line, hill, levels=20, cmap="Greens")
figure.colorbar(picture, label="revenue")
for (name, path), colour in zip(paths.items(), ("tab:orange", "tab:gray", "tab:purple"), strict=True):
    axis.plot(*torch.stack(path).T, marker=".", color=colour, label=f"from {name}")
axis.set(xlabel="toll on road 1", ylabel="toll on road 2", title="revenue over both tolls, and three runs")
axis.legend()
plt.show()
