"""TorchOpt 0.7.3: `implicit.custom_root` of the fixed point y = P(y - eta grad_y g), the lower level by 100 accelerated
projected steps from the last y, the linear system by its own normal-equation conjugate gradients; x by Adam.
"""

import torch
import torchopt
from recorder import record
from torch_parts import STEP, A, data, largest_curvature, lower_grad, project, upper

ETA = 1.0 / largest_curvature(torch.full((len(A),), 4.0, dtype=A.dtype))


def residual(y, x):
    return y - project(y - ETA * lower_grad(y, x))


@torchopt.diff.implicit.custom_root(residual, argnums=1, solve=torchopt.linear_solve.solve_normal_cg(maxiter=20))
def solve(y, x):
    with torch.no_grad():
        z, t = y, 1.0
        for _ in range(100):
            new = project(z - ETA * lower_grad(z, x))
            t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
            y, z, t = new, new + (t - 1) / t_new * (new - y), t_new
    return y


def make():
    x = torch.from_numpy(data["x0"].copy()).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=STEP)
    last = [torch.zeros(A.shape[1], dtype=A.dtype)]

    def step():
        y = solve(last[0], x)
        optimizer.zero_grad()
        upper(y).backward()
        optimizer.step()
        last[0] = y.detach()

    return step, lambda: x.detach().numpy()


record(make)
