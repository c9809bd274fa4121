"""How one batch of fresh tasks moves a network: by a solver of the library, or by an optimiser of torch.

Both draw problem k as a function of k alone, and leave the network as it was when a step is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...errors import Incompatible, InvalidType, NotFinite
from ...hypergradients import LinearSolve
from ...randomness import Noise, Seeds
from ...solvers.base import check_compatible
from .problem import FewShotProblem, Parameters

Draw = Callable[[int], FewShotProblem]


class Judged(NamedTuple):
    """Loss and accuracy on the queries of a step's tasks."""

    loss: float
    accuracy: float


class SolverUpdates:
    """x moves by the solver's own step, which also samples the hypergradient of the next one.

    The state of y cannot be carried from one set of tasks to another: y starts at the solution of its new tasks for the
    x to come, and the rest of the solver's state is kept (`State.renewed`).
    """

    def __init__(self, network: nn.Module, solver: Any, seeds: Seeds) -> None:
        self.network, self.solver, self.seeds, self.state = network, solver, seeds, None
        if isinstance(solver, type) or not (hasattr(solver, "init") and hasattr(solver, "step")):
            raise InvalidType(f"solver must be an object such as bilevel.DMLCBO(), got {solver!r}")
        if getattr(solver, "step_rule", "fixed") == "adaptive":
            name = type(solver).__name__
            raise Incompatible(
                f"{name}(step_rule='adaptive') compares values of f from step to step, but each step has tasks of its "
                f"own: use {name}(step_rule='fixed', upper_step=...)"
            )

    def step(self, draw: Draw, k: int) -> Judged:
        """Step k, on tasks of its own."""
        if self.state is None:
            self.state = self._first(draw(0))
        problem = draw(k)
        ahead = getattr(self.solver, "next_x", lambda problem, state: state.x)
        x = ahead(problem, self.state)
        y = problem.solve(x)
        judged = Judged(*problem.judge(x, y))
        new = self.solver.step(problem, self.state.renewed(y))
        check_finite(problem, judged, new.x)
        self.state = new
        place(self.network, new.x)
        place_buffers(self.network, problem.buffers)
        problem.forget()  # a graph of hundreds of megabytes, which would wait for the garbage collector
        return judged

    def _first(self, problem: FewShotProblem) -> Any:
        x, solver = problem.x0, self.solver
        y = problem.solve(x)  # type: ignore[arg-type]
        check_compatible(solver, problem, problem.constraint_at(x), y)  # type: ignore[arg-type]
        return solver.init(problem, x, y, self.seeds)

    def __repr__(self) -> str:
        return repr(self.solver)

    def saved(self) -> dict[str, Any]:
        """What a file needs to go on from here."""
        return {"solver_state": self.state}

    def restore(self, saved: Any) -> None:
        """Go on from a `TrainingState`."""
        self.state = saved.solver_state


class OptimizerUpdates:
    """The hypergradient at the solved dual goes to `.grad`, and an optimiser of torch takes the step.

    Parameters
    ----------
    network
        Its parameters are the optimiser's.
    make_optimizer, make_scheduler
        parameters -> optimiser, and optimiser -> scheduler (or None), called once.
    estimator
        Of the hypergradient.
    seeds
        Of estimators that draw.
    """

    def __init__(
        self, network: nn.Module, make_optimizer: Any, make_scheduler: Any, estimator: Any, seeds: Seeds
    ) -> None:
        if not callable(make_optimizer):
            raise InvalidType(
                "optimizer must be a function of the parameters, for example "
                f"lambda parameters: torch.optim.Adam(parameters, lr=1e-3), got {make_optimizer!r}"
            )
        if make_scheduler is not None and not callable(make_scheduler):
            raise InvalidType(f"scheduler must be a function of the optimiser, got {make_scheduler!r}")
        self.network, self.seeds, self.estimator = network, seeds, estimator or LinearSolve()
        self.parameters = {name: value for name, value in network.named_parameters() if value.requires_grad}
        self.optimizer: Any = make_optimizer(list(self.parameters.values()))
        self.scheduler: Any = None if make_scheduler is None else make_scheduler(self.optimizer)
        for made, kinds in ((self.optimizer, (torch.optim.LBFGS,)), (self.scheduler, (ReduceLROnPlateau,))):
            if isinstance(made, kinds):
                raise Incompatible(
                    f"{type(made).__name__} looks at losses by itself, but each step has tasks of its own: choose "
                    "another, such as torch.optim.Adam with CosineAnnealingLR"
                )

    def step(self, draw: Draw, k: int) -> Judged:
        """Step k, on tasks of its own."""
        problem, x = draw(k), {name: value.detach() for name, value in self.parameters.items()}
        lin = problem.linearize(x, problem.solve(x))
        judged = Judged(*problem.judge(x, lin.y))
        h: Any = self.estimator.estimate(lin, Noise(self.seeds, k)).gradient
        check_finite(problem, judged, h)
        before = {name: value.clone() for name, value in x.items()}
        for name, value in self.parameters.items():
            value.grad = h[name]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        try:
            check_finite(problem, judged, x)
        except NotFinite:
            place(self.network, before)
            raise
        place_buffers(self.network, problem.buffers)
        problem.forget()
        if self.scheduler is not None:
            self.scheduler.step()
        return judged

    def __repr__(self) -> str:
        scheduler = "" if self.scheduler is None else f" with {type(self.scheduler).__name__}"
        return f"{type(self.optimizer).__name__}({self.optimizer.defaults}){scheduler}, {self.estimator!r}"

    def saved(self) -> dict[str, Any]:
        """What a file needs to go on from here."""
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "scheduler": scheduler}

    def restore(self, saved: Any) -> None:
        """Go on from a `TrainingState`."""
        if saved.optimizer is not None:
            self.optimizer.load_state_dict(saved.optimizer)
        if saved.scheduler is not None and self.scheduler is not None:
            self.scheduler.load_state_dict(saved.scheduler)


Updates = SolverUpdates | OptimizerUpdates


def check_finite(problem: FewShotProblem, judged: Judged, vector: Any) -> None:
    """The loss and the new parameters, or the hypergradient, are numbers."""
    if not (math.isfinite(judged.loss) and problem.x_space.is_finite(vector)):
        raise NotFinite(f"the loss is {judged.loss:g}, or parameters or hypergradient are not finite")


@torch.no_grad()
def place(network: nn.Module, parameters: Parameters) -> None:
    """Give the network these parameters, in place."""
    own = dict(network.named_parameters())
    for name, value in parameters.items():
        own[name].copy_(value)


@torch.no_grad()
def place_buffers(network: nn.Module, buffers: Parameters) -> None:
    """Give the network these buffers, in place."""
    own = dict(network.named_buffers())
    for name, value in buffers.items():
        own[name].copy_(value)


def copied(tensors: Any) -> dict[str, Tensor]:
    """Detached copies of named tensors."""
    return {name: value.detach().clone() for name, value in tensors}
