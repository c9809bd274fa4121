"""Betty (betty-ml 0.1.1): INNER lower-level steps from the last y, then its Neumann series with 20 terms.

Its hypergradient knows no constraint. The projection is its `param_callback` after each lower-level step, and the
series runs over all of y as if there were none. (Its conjugate gradients update the direction with the old residual.)
"""

import torch
from betty.configs import Config, EngineConfig
from betty.engine import Engine
from betty.problems import ImplicitProblem
from recorder import INNER, record
from torch_parts import A, data, largest_curvature, lower, project, upper, upper_optimizer

ETA = 1.0 / largest_curvature(torch.full((len(A),), 4.0, dtype=A.dtype))
NOTHING = [(torch.zeros(1),)]  # instead of a data loader: the rows stand in the losses


class Vector(torch.nn.Module):
    def __init__(self, values):
        super().__init__()
        self.values = torch.nn.Parameter(values)

    def forward(self):
        return self.values


class Outer(ImplicitProblem):
    def training_step(self, batch):
        return upper(self.inner())


class Inner(ImplicitProblem):
    def training_step(self, batch):
        return lower(self(), self.outer())

    def param_callback(self, parameters):
        with torch.no_grad():
            for y in parameters:
                y.copy_(project(y))


def make():
    x, y = Vector(torch.from_numpy(data["x0"].copy())), Vector(torch.zeros(A.shape[1], dtype=A.dtype))
    series = Config(type="neumann", neumann_iterations=20, neumann_alpha=ETA, unroll_steps=INNER)
    outer = Outer(name="outer", config=Config(retain_graph=True), module=x, device="cpu",
                  optimizer=upper_optimizer(x.parameters()), train_data_loader=NOTHING)  # fmt: skip
    inner = Inner(name="inner", config=series, module=y, device="cpu",
                  optimizer=torch.optim.SGD(y.parameters(), lr=ETA), train_data_loader=NOTHING)  # fmt: skip
    dependencies = {"u2l": {outer: [inner]}, "l2u": {inner: [outer]}}
    engine = Engine(config=EngineConfig(), problems=[outer, inner], dependencies=dependencies)
    engine.train()

    def step():
        for _ in range(INNER):
            engine.global_step += 1
            engine.train_step()

    return step, lambda: x.values.detach().numpy()


record(make)
