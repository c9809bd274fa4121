r"""
Hyper-cleaning: learn which digits to trust
===========================================

The data are the sixes and nines of scikit-learn's digits, with 30 % wrong labels and a hundred trusted rows. One weight
per training row is learned such that a sparse model trained with these weights does well on the trusted rows:

.. math::

    \min_x \frac1m \sum_{\text{trusted}} \ell(y^*(x) \cdot a_j, b_j),
    \qquad
    y^*(x) = \operatorname*{argmin}_{|y|_1 \le 3} \frac1n \sum_i \sigma(x_i)\, \ell(y \cdot a_i, b_i) + c |y|^2 .
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import bilevel
from bilevel.cleaning import CleaningProblem

# %%
# There are 160 training rows and 100 trusted rows; the rest are test rows.
images, digits = load_digits(return_X_y=True)
rows = np.random.default_rng(0).permutation(np.flatnonzero(np.isin(digits, (6, 9))))
A, b = torch.tensor(images[rows] / 16), torch.tensor(digits[rows] == 9).long()
wrong = torch.arange(160) < 48
given = torch.where(wrong, 1 - b[:160], b[:160])

# %%
# ``CleaningProblem`` has f, g and all derivatives of this problem in closed form; any solver can use it.
problem = CleaningProblem(A[:160], given, A[160:260], b[160:260], noise="rows", radius=3.0, intercept=False)
solution = bilevel.minimize(problem, problem.start(), solver=bilevel.DMLCBO(), steps=400, evaluate_every=20)
print(solution)


def accuracy(model):
    scores = A[260:] @ model["weight"][0]
    return float(((scores > 0) == (b[260:] == 1)).double().mean())


untrained = bilevel.solve_lower(problem, problem.start()).y
print(f"test accuracy {accuracy(untrained):.1%} with equal weights, {accuracy(solution.y):.1%} with learned ones")

# %%
# Rows with a wrong label lose their weight, although the solver does not know which labels are wrong.
weights = solution.x.sigmoid()
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.semilogy([r.step for r in solution.history], [r.upper for r in solution.history])
left.set(xlabel="step of DMLCBO", ylabel="loss on the trusted rows", title="the upper level decreases")
bins = np.linspace(0, 1, 26)
right.hist(weights[~wrong], bins=bins, alpha=0.7, label="correct label")
right.hist(weights[wrong], bins=bins, alpha=0.7, label="wrong label")
right.set(xlabel="learned weight of a row", ylabel="rows", title="rows with wrong labels lose their weight")
right.legend(frameon=False)
plt.show()
