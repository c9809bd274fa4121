r"""
The bound of the theory and the rate one sees
=============================================

The theorem behind DMLCBO bounds the smoothed hypergradient at a random iterate; once the number of steps K is far
beyond its constant m, the bound falls like :math:`K^{-1/4}`. How far is that from what happens? A problem in one
dimension, with a kink at its minimum, where everything is known:

.. math::

    F(x) = |x| + \tfrac12 x^2,
    \qquad f = 2 y - x + \tfrac12 x^2,
    \qquad y^*(x) = \operatorname*{argmin}_{y \ge 0} \tfrac12 (y - x)^2 = \max(x, 0) .
"""

import math

import matplotlib.pyplot as plt
import torch

import bilevel

problem = bilevel.Problem(
    upper=lambda x, y: (2 * y - x + x.square() / 2).sum(),
    lower=lambda x, y: (y - x).square().sum() / 2,
    constraint=bilevel.sets.NonNegative(),
)
start = torch.tensor([1.0]).double()

# %%
# The constants of this problem can be read off; ``bilevel.estimate_constants(problem, x)`` looks for them otherwise.
# On the way from 1 to 0 the gap is :math:`F(1) - F(0) = 1.5`.
constants = bilevel.Constants(mu=1, smoothness=1, cross=1, upper_slope=2, upper_smoothness=1, dimension=1)
theory = bilevel.Theory(constants=constants, delta=0.1)
print(theory)
solver, steps = bilevel.DMLCBO.from_theory(theory, eps=0.1, gap=1.5)
print(f"for |h| <= 0.1 the bound needs {steps:.1e} steps, with Q = {solver.hypergradient.terms}")


# %%
# The smoothed hypergradient has a closed form, so each iterate can be measured exactly.
def smoothed(x, delta=0.1):
    """|x - 1 + 2 E[z + delta u > 0]| with z = x at the solved lower level."""
    return abs(x - 1 + 2 * min(max((x + delta) / (2 * delta), 0.0), 1.0))


def running_mean(solver, count):
    total, means = 0.0, []
    for state in bilevel.iterate(problem, start, start, solver=solver):
        total += smoothed(float(state.x))
        means.append(total / state.step)
        if state.step == count:
            return means


COUNT = 2000
cheaper = bilevel.Neumann(terms=theory.terms(COUNT), eta=theory.step, smoothing=bilevel.Perturbed(radius=0.1))
by_theory = bilevel.DMLCBO(
    upper_step=solver.upper_step, lower_step=solver.lower_step, hypergradient=cheaper, delay=solver.delay,
    upper_momentum=solver.upper_momentum, lower_momentum=solver.lower_momentum, smallest_scale=1.0, largest_scale=1.0,
)  # fmt: skip
smooth = bilevel.LinearSolve(smoothing=bilevel.Perturbed(radius=0.1))
runs = {
    "measured, settings of the theorem": running_mean(by_theory, COUNT),
    "measured, defaults with smoothing 0.1": running_mean(bilevel.DMLCBO(hypergradient=smooth), COUNT),
}

# %%
# The bound holds, and is larger than the truth by many orders of magnitude: its steps are so small that in 2000 of
# them x does not move. The defaults are past the theorem's guarantees, and at the minimum.
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
axis.loglog(range(1, COUNT + 1), [theory.bound(k, gap=1.5) for k in range(1, COUNT + 1)], "--", label="bound")
for name, means in runs.items():
    axis.loglog(range(1, COUNT + 1), means, label=name)
axis.set(xlabel="steps K", ylabel="mean of |h| over the iterates", title="bound and measurement")
axis.legend(frameon=False)
for name, means in runs.items():
    power = math.log10(means[-1] / means[COUNT // 10 - 1])
    print(f"{name}: {means[-1]:.3g} after {COUNT} steps, the bound says {theory.bound(COUNT, gap=1.5):.3g}")
    print(f"    over the last decade of K it fell like K^({power:.2f})")
plt.show()
