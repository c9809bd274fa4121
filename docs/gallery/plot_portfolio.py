r"""
A portfolio on a capped simplex
===============================

How risk-averse should an investor be, and how much may be invested in one asset? The portfolio is the lower level,

.. math::

    y^*(x) = \operatorname*{argmin}_{0 \le y \le \text{cap}(x),\ \sum y = 1}
    \tfrac{\gamma(x)}{2} y^\top \Sigma y - m^\top y,

with means m and covariances :math:`\Sigma` of past days. Risk aversion :math:`\gamma = e^{x_1}` and the cap
:math:`\tfrac1n + \sigma(x_2)(1 - \tfrac1n)` are chosen by gradient on later days: the set moves with x, and the
derivative of the projection with respect to the cap is part of the hypergradient. The returns are generated; this is
not financial advice.
"""

import matplotlib.pyplot as plt
import torch

import bilevel

# %%
# Twelve assets with two common factors, 120 days for training and 240 for validation.
generator = torch.Generator().manual_seed(3)
n = 12
factors = torch.randn(2, n, generator=generator).double() * 0.6
edge = torch.linspace(-0.05, 0.2, n).double()
noise = torch.randn(360, n, generator=generator).double()
days = edge + torch.randn(360, 2, generator=generator).double() @ factors + noise
past, later = days[:120], days[120:]
mean, covariance = past.mean(0), past.T.cov()


def cap(x):
    return 1 / n + x[1].sigmoid() * (1 - 1 / n)


def utility(returns, y):
    gains = returns @ y
    return gains.mean() - 0.25 * gains.var()


problem = bilevel.Problem(
    upper=lambda x, y: -utility(later, y),
    lower=lambda x, y: x[0].exp() / 2 * y @ covariance @ y - mean @ y + 1e-3 * y @ y,
    constraint=lambda x: bilevel.sets.CappedSimplex(cap=cap(x), total=1.0),
    y0=torch.full((n,), 1 / n, dtype=torch.float64),
)

# %%
# Start with a small risk aversion and a tight cap.
start = torch.tensor([-3.0, -1.5]).double()
solution = bilevel.minimize(problem, start, solver=bilevel.DMLCBO(), steps=300, evaluate_every=10)
for name, x in {"start": start, "found": solution.x}.items():
    value = -float(bilevel.upper_value(problem, x))
    print(f"{name}: risk aversion {float(x[0].exp()):.3f}, cap {float(cap(x)):.3f}, utility on later days {value:.4f}")

# %%
# Is the gradient correct, including the part of the set? The check compares it with differences of F.
print(bilevel.check_hypergradient(problem, solution.x))

# %%
# The initial and the optimised portfolio.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
positions = torch.arange(n)
left.bar(positions - 0.2, bilevel.solve_lower(problem, start).y, width=0.4, label="start")
left.bar(positions + 0.2, bilevel.solve_lower(problem, solution.x).y, width=0.4, label="optimised")
left.axhline(float(cap(solution.x)), color="0.6", linestyle="--", label="optimised cap")
left.set(xlabel="asset", ylabel="fraction", ylim=(0, 0.36), title="portfolios at the start and at the end")
left.legend(frameon=False, loc="upper left")
records = solution.history[1:]  # the first one is f at y0, before the lower level has responded to x
right.plot([r.step for r in records], [-r.upper for r in records])
right.set(xlabel="step of DMLCBO", ylabel="utility", title="utility on later days")
plt.show()
