"""TorchOpt 0.7.3: `implicit.custom_root` of the fixed point y = P(y - eta grad_y g), the lower level by INNER plain
projected steps from the last y (accelerated ones keep columns out), the linear system by its own normal-equation
conjugate gradients.
"""

import torch
import torchopt
from recorder import INNER, record
from torch_parts import A, data, largest_curvature, lower_grad, project, upper, upper_optimizer

ETA = 1.0 / largest_curvature(torch.full((len(A),), 4.0, dtype=A.dtype))


def residual(y, x):
    return y - project(y - ETA * lower_grad(y, x))


@torchopt.diff.implicit.custom_root(residual, argnums=1, solve=torchopt.linear_solve.solve_normal_cg(maxiter=20))
def solve(y, x):
    with torch.no_grad():
        for _ in range(INNER):
            y = project(y - ETA * lower_grad(y, x))
    return y


def make():
    x = torch.from_numpy(data["x0"].copy()).requires_grad_()
    optimizer = upper_optimizer([x])
    last = [torch.zeros(A.shape[1], dtype=A.dtype)]

    def step():
        y = solve(last[0], x)
        optimizer.zero_grad()
        upper(y).backward()
        optimizer.step()
        last[0] = y.detach()

    return step, lambda: x.detach().numpy()


record(make)
