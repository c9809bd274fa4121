"""The functions of the two torch peers, with derivatives in closed form where that is faster."""

import torch
from recorder import ADAM, RADIUS, RIDGE, arguments

torch.set_num_threads(1)
data, STEP = arguments()
A, a, B, b = (torch.from_numpy(data[name]) for name in ("A", "a", "B", "b"))


def upper_optimizer(parameters):
    return (torch.optim.Adam if ADAM else torch.optim.SGD)(parameters, lr=STEP)


def lower(y, x):
    return (x.sigmoid() * torch.nn.functional.softplus(-a * (A @ y))).mean() + RIDGE * (y * y).sum()


def lower_grad(y, x):
    return A.T @ (-a * x.sigmoid() * torch.sigmoid(-a * (A @ y))) / len(a) + 2 * RIDGE * y


def upper(y):
    return torch.nn.functional.softplus(-b * (B @ y)).mean()


def project(z):
    """On the l1 ball; autograd follows it, torch.func too."""
    size = z.abs()
    ranks = torch.arange(1, len(z) + 1, dtype=z.dtype)
    ordered = size.sort(descending=True).values
    levels = (ordered.cumsum(0) - RADIUS) / ranks
    level = levels.gather(0, (ordered > levels).sum().reshape(1) - 1)
    return torch.where(size.sum() > RADIUS, z.sign() * (size - level).clamp_min(0), z)


def largest_curvature(x, steps=30):
    """Of the lower level at y = 0, by power iteration."""
    v = torch.ones(A.shape[1], dtype=A.dtype)
    for _ in range(steps):
        v = A.T @ (x.sigmoid() * (A @ (v / v.norm()))) / (4 * len(a))
    return float(v.norm()) + 2 * RIDGE
