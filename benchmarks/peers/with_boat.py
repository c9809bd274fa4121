"""BOAT (boat-torch 1.1.1): NGD with RAD, reverse mode through INNER lower-level steps from the last y.

Its lower level knows no constraint (and its CG ignores one in the hypergradient): the projection is put into the
lower-level optimiser by hand, where `higher` differentiates it with the rest.
"""

import os
import sys
import tempfile

import higher
import torch
from boat_torch.boat_opt import Problem
from recorder import INNER, record
from torch_parts import A, data, largest_curvature, lower, project, upper, upper_optimizer

ETA = 1.0 / largest_curvature(torch.full((len(A),), 4.0, dtype=A.dtype))


class ProjectedSGD(torch.optim.SGD):
    """y <- P(y - lr grad)."""


class DifferentiableProjectedSGD(higher.optim.DifferentiableOptimizer):
    def _update(self, grouped_grads, **_):
        for group, grads in zip(self.param_groups, grouped_grads, strict=True):
            for k, (y, g) in enumerate(zip(group["params"], grads, strict=True)):
                if g is not None:
                    group["params"][k] = project(y - group["lr"] * g)


higher.register_optim(ProjectedSGD, DifferentiableProjectedSGD)


class Vector(torch.nn.Module):
    def __init__(self, values):
        super().__init__()
        self.values = torch.nn.Parameter(values)

    def forward(self):
        return self.values


def lower_loss(feed, upper_model, lower_model, params=None):
    return lower(lower_model() if params is None else params[0], upper_model())


def upper_loss(feed, upper_model, lower_model, params=None):
    return upper(lower_model() if params is None else params[0])


sys.modules["losses"] = sys.modules[__name__]  # BOAT loads them by name


def make():
    x, y = Vector(torch.from_numpy(data["x0"].copy())), Vector(torch.zeros(A.shape[1], dtype=A.dtype))
    config = {
        "fo_op": None, "gm_op": ["NGD"], "na_op": ["RAD"], "lower_iters": INNER, "device": "cpu",
        "lower_level_model": y, "upper_level_model": x,
        "lower_level_var": list(y.parameters()), "upper_level_var": list(x.parameters()),
        "lower_level_opt": ProjectedSGD(y.parameters(), lr=ETA),
        "upper_level_opt": upper_optimizer(x.parameters()),
        "accumulate_grad": False, "copy_last_param": True, "return_grad": False, "fo_ol_batch_input": False,
        "GDA": {"alpha_init": 0.0, "alpha_decay": 0.5}, "RGT": {"truncate_iter": 0}, "DI": {"lr": 0.0},
        "loss_log_path": os.path.join(tempfile.mkdtemp(), "losses.json"),
    }  # fmt: skip
    losses = {"lower_level_loss": {"function": "losses.lower_loss"},
              "upper_level_loss": {"function": "losses.upper_loss"}}  # fmt: skip
    problem = Problem(config, losses)
    problem.build_ll_solver()
    problem.build_ul_solver()
    problem.set_track_trajectory(True)
    problem.save_losses = lambda **_: None  # not part of the method
    count = [0]

    def step():
        count[0] += 1
        problem.run_iter({}, {}, current_iter=count[0])

    return step, lambda: x.values.detach().numpy()


record(make)
