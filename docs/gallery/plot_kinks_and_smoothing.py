r"""
A function with kinks, and its smoothed hypergradient
=====================================================

Where the lower-level solution reaches or leaves a bound, :math:`F(x) = f(x, y^*(x))` has a kink: its gradient
jumps, and plain descent does not converge there with any step size. Randomised smoothing replaces the Jacobian of the
projection by its mean over a small ball,

.. math:: \mathbb{E}_u[\nabla P_Y(z + \delta u)], \qquad z = y - \eta \nabla_y g(x, y),

and the jump becomes a ramp of width :math:`2\delta`.
"""

import matplotlib.pyplot as plt
import torch

import bilevel

# %%
# y follows x, but stays in [0, 1]: y*(x) = min(max(x, 0), 1). The upper level pulls y up and x down.
problem = bilevel.Problem(
    upper=lambda x, y: (x.square() / 4 - x / 2 + (y - 0.6).square() * 2).sum(),
    lower=lambda x, y: (y - x).square().sum() / 2,
    constraint=bilevel.sets.Box(0.0, 1.0),
    y0=torch.full((1,), 0.5).double(),
)
points = torch.linspace(-0.8, 1.8, 40).double()
values = [float(bilevel.upper_value(problem, x[None])) for x in points]


# %%
# At a kink, the exact hypergradient is one-sided. The smoothed one is the mean of ``Perturbed`` draws. Each draw has
# the cost of an exact hypergradient, and a solver uses a new draw at every step instead of the mean.
def exact(x):
    return float(bilevel.hypergradient(problem, x[None]))


def smoothed(x, radius, draws=40):
    method = bilevel.LinearSolve(smoothing=bilevel.hypergradients.Perturbed(radius=radius))
    y = bilevel.solve_lower(problem, x[None]).y
    found = [float(bilevel.hypergradient(problem, x[None], y, method=method, seed=k)) for k in range(draws)]
    return sum(found) / draws


jumps = [exact(x) for x in points]
ramps = {radius: [smoothed(x, radius) for x in points] for radius in (0.1, 0.4)}

# %%
# At x = 0 and x = 1 a bound becomes active.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.plot(points, values, color="tab:blue")
left.set(xlabel="x", ylabel="F(x)", title="F has a kink where y*(x) meets a bound")
right.step(points, jumps, where="mid", color="0.5", label="exact: jumps at the kinks")
for radius, ramp in ramps.items():
    right.plot(points, ramp, label=f"smoothed, delta = {radius}")
for kink in (0.0, 1.0):
    left.axvline(kink, color="0.85", zorder=0)
    right.axvline(kink, color="0.85", zorder=0)
right.set(xlabel="x", ylabel="h(x)", title="its hypergradient, exact and smoothed")
right.legend(frameon=False)
plt.show()

# %%
# Is the kink at x = 1 stationary? No hypergradient nearby is small on its own; the certificate combines Jacobians.
for x in (0.0, 1.0):
    print(f"x = {x}:", bilevel.certificate(problem, torch.tensor([x]).double(), delta=1e-3).eps)
