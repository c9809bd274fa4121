r"""
Choose the radius of a sparse regression by gradient
====================================================

How sparse should a model be? Usually a grid of radii is evaluated on a validation set. Here the radius is the upper
variable: the set depends on x, and the projection onto it is differentiated with respect to the radius.

.. math::

    \min_x \; \frac{1}{n_v} |A_v y^*(x) - b_v|^2
    \quad\text{with}\quad
    y^*(x) = \operatorname*{argmin}_{|y|_1 \le e^x} \frac{1}{n} |A y - b|^2 + 0.02 |y|^2 .
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import bilevel

# %%
# Real data: 442 patients, ten measurements and all their products (65 columns), standardised.
measurements, progression = load_diabetes(return_X_y=True)
columns = StandardScaler().fit_transform(PolynomialFeatures(2, include_bias=False).fit_transform(measurements))
A, b = torch.tensor(columns), torch.tensor((progression - progression.mean()) / progression.std())
order = torch.randperm(len(b), generator=torch.Generator().manual_seed(0))
train, valid = order[:250], order[250:]

# %%
# The set is a function of x.
problem = bilevel.Problem(
    upper=lambda x, y: (A[valid] @ y - b[valid]).square().mean(),
    lower=lambda x, y: (A[train] @ y - b[train]).square().mean() + 0.02 * y @ y,
    constraint=lambda x: bilevel.sets.L1Ball(radius=x.exp()),
    y0=torch.zeros(columns.shape[1]).double(),
)
x0 = torch.tensor(-2.0).double()
solution = bilevel.minimize(problem, x0, solver=bilevel.DMLCBO(), steps=1000, evaluate_every=20)
print(solution)
print(f"radius {float(solution.x.exp()):.3f}, validation loss {float(bilevel.upper_value(problem, solution.x)):.4f}")

# %%
# A grid search agrees, and shows the function that was minimised.
grid = torch.linspace(-2.5, 2.0, 31).double()
values = [float(bilevel.upper_value(problem, x, tol=1e-6)) for x in grid]
best = int(torch.tensor(values).argmin())
print(f"best of 31 grid points: radius {float(grid[best].exp()):.3f}, validation loss {values[best]:.4f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.plot(grid.exp(), values, color="tab:blue")
left.axvline(float(solution.x.exp()), color="tab:orange", label="found by gradient")
left.set(xscale="log", xlabel="radius of the l1 ball", ylabel="validation loss F", title="F against the radius")
left.legend(frameon=False)
right.plot([record.step for record in solution.history], [record.upper for record in solution.history])
right.set(xlabel="step of DMLCBO", ylabel="f(x, y)", title="one loop for the radius and the model")
plt.show()
