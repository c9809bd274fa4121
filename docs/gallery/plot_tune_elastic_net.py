r"""
Tune an elastic net by gradient
===============================

Two penalties are tuned on one validation loss. The lower level has a penalty instead of a set,

.. math:: y^*(x) = \operatorname*{argmin}_y \tfrac1n |Ay - b|^2 + e^{x_1} |y|_1 + \tfrac12 e^{x_2} |y|^2 ,

which is rewritten with a set by :math:`y = p - q` with :math:`p, q \ge 0`: at the solution one of each pair is
zero, :math:`|y|_1 = \sum (p + q)` and :math:`|y|^2 = |p|^2 + |q|^2`. The projection onto the orthant then corresponds
to soft-thresholding.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import bilevel

# %%
# The diabetes data with all products of columns: 65 columns, 150 training rows, 292 validation rows.
measurements, progression = load_diabetes(return_X_y=True)
columns = StandardScaler().fit_transform(PolynomialFeatures(2, include_bias=False).fit_transform(measurements))
A, b = torch.tensor(columns), torch.tensor((progression - progression.mean()) / progression.std())
order = torch.randperm(len(b), generator=torch.Generator().manual_seed(0))
train, valid = order[:150], order[150:]
d = A.shape[1]


def validation(x, y):
    return (A[valid] @ (y[:d] - y[d:]) - b[valid]).square().mean()


def penalised(x, y):
    fit = (A[train] @ (y[:d] - y[d:]) - b[train]).square().mean()
    return fit + x[0].exp() * y.sum() + x[1].exp() * y.square().sum() / 2


problem = bilevel.Problem(validation, penalised, bilevel.sets.NonNegative(), y0=torch.zeros(2 * d).double())

# %%
# Start with weak penalties and take 400 steps of DMLCBO.
start = torch.tensor([-6.0, -3.0]).double()
path = [start]
solution = bilevel.minimize(
    problem,
    start,
    solver=bilevel.DMLCBO(),
    steps=400,
    evaluate_every=10,
    callbacks=[lambda record, state: path.append(state.x.clone())],
)
print(solution)
print("validation loss", float(bilevel.upper_value(problem, solution.x, tol=1e-8)))

# %%
# The same lower level, solved by proximal steps with the penalty of the library: another algorithm gives the same
# result.
penalty = bilevel.sets.ElasticNetPenalty(float(solution.x[0].exp()), float(solution.x[1].exp()))
gram, target = A[train].T @ A[train] * 2 / len(train), A[train].T @ b[train] * 2 / len(train)
step = 1 / float(torch.linalg.matrix_norm(gram, 2))
y = torch.zeros(d).double()
for _ in range(5000):
    y = penalty.prox(y - step * (gram @ y - target), step)
split = bilevel.solve_lower(problem, solution.x, tol=1e-9).y
difference = (y - (split[:d] - split[d:])).abs().max()
print(f"{int((y != 0).sum())} of {d} columns are used; largest difference {difference:.1e}")

# %%
# The validation loss over both penalties, and the path of the run.
first, second = torch.linspace(-6.5, -0.5, 9).double(), torch.linspace(-5.0, 1.0, 7).double()
grid = [[float(bilevel.upper_value(problem, torch.stack([u, v]), tol=1e-3)) for u in first] for v in second]
figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
picture = axis.contourf(first, second, grid, levels=20, cmap="Blues_r")
figure.colorbar(picture, label="validation loss")
axis.plot(*torch.stack(path).T, color="tab:orange", marker=".", label="DMLCBO, every tenth step")
axis.plot(*solution.x, "o", color="tab:red", label="end")
axis.set(xlabel="log of the l1 penalty", ylabel="log of the l2 penalty", title="validation loss over both penalties")
axis.legend()
plt.show()
