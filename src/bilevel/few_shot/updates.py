"""Updates of a network by the hypergradient of fresh tasks: by a solver of the library or an optimiser of torch.

Step k leads from the state before it, which stays as it was, and from the problem of the tasks of k to an `Update`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .._checks import check_count, check_solver_object
from ..errors import IncompatibleError, InvalidInputError, InvalidTypeError, NonFiniteError
from ..hypergradients import LinearSolve
from ..random import RandomStreams, Seeds
from ..solvers.base import check_compatible
from .problem import FewShotProblem, Parameters


class Update(NamedTuple):
    """The parameters and the state of the method after a step; loss and accuracy of its queries before the step."""

    x: Parameters
    state: Any
    loss: float
    accuracy: float


class SolverUpdates:
    """x moves by the solver's own step, which also samples the hypergradient of the next one.

    The state of y cannot be carried from one set of tasks to another: y starts at the solution of its new tasks for the
    x to come, and the rest of the solver's state is kept (`State.reset_lower`). With the same tasks in all steps
    (`fixed`) the state of y is kept as well.
    """

    def __init__(self, solver: Any, seeds: Seeds, *, fixed: bool = False) -> None:
        self.solver = solver
        self.seeds = seeds
        self.fixed = fixed
        self.halve_every: int | None = None
        check_solver_object(solver)
        adaptive, name = getattr(solver, "step_rule", "fixed") == "adaptive", type(solver).__name__
        if adaptive or (getattr(solver, "upper_step", None) == "auto" and not fixed):
            given, other = ("step_rule='adaptive'", "step_rule='fixed', ") if adaptive else ("upper_step='auto'", "")
            raise IncompatibleError(
                f"{name}({given}) compares values of f from step to step, but each step has tasks of its own: use "
                f"{name}({other}upper_step=0.1)"
            )

    def init(self, draw: Callable[[int], FewShotProblem]) -> Any:
        """The state before the first step, on tasks of its own."""
        problem = draw(0)
        x: Any = problem.x0
        y = problem.solve(x)
        check_compatible(self.solver, problem, problem.constraint_at(x), y)
        return self.solver.init(problem, x, y, self.seeds)

    def restore(self, state: Any) -> None:
        """Nothing is kept here."""

    def step(self, problem: FewShotProblem, state: Any, k: int) -> Update:
        solver = self._solver_at(k)
        if hasattr(state, "upper_step"):  # double loops keep it in their state
            state = replace(state, upper_step=solver.upper_step)
        x = state.x
        if not self.fixed:
            x = getattr(solver, "next_x", lambda problem, state: state.x)(problem, state)
            state = state.reset_lower(problem.solve(x))
        loss, accuracy = problem.loss_and_accuracy(x, state.y)
        new = solver.step(problem, state)
        return Update(new.x, new, loss, accuracy)

    def set_schedule(self, halve_every: int | None) -> None:
        """Halve the step size of the solver after every so many steps."""
        if halve_every is not None:
            check_count("halve_every", halve_every)
            if not isinstance(getattr(self.solver, "upper_step", None), float | int):
                raise InvalidInputError(
                    f"halve_every={halve_every} needs a solver with a number as upper_step, got {self.solver}"
                )
        self.halve_every = halve_every

    def _solver_at(self, k: int) -> Any:
        """The solver with the step size of step k."""
        if self.halve_every is None:
            return self.solver
        return replace(self.solver, upper_step=self.solver.upper_step * 0.5 ** ((k - 1) // self.halve_every))

    def __repr__(self) -> str:
        return repr(self.solver)


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
            raise InvalidTypeError(
                "optimizer must be a function of the parameters, for example "
                f"lambda parameters: torch.optim.Adam(parameters, lr=1e-3), got {make_optimizer!r}"
            )
        if make_scheduler is not None and not callable(make_scheduler):
            raise InvalidTypeError(f"scheduler must be a function of the optimiser, got {make_scheduler!r}")
        self.seeds = seeds
        self.estimator = estimator or LinearSolve()
        self.parameters = {name: value for name, value in network.named_parameters() if value.requires_grad}
        self.optimizer: Any = make_optimizer(list(self.parameters.values()))
        self.scheduler: Any = None if make_scheduler is None else make_scheduler(self.optimizer)
        for made, kinds in ((self.optimizer, (torch.optim.LBFGS,)), (self.scheduler, (ReduceLROnPlateau,))):
            if isinstance(made, kinds):
                raise IncompatibleError(
                    f"{type(made).__name__} looks at losses by itself, but each step has tasks of its own: choose "
                    "another, such as torch.optim.Adam with CosineAnnealingLR"
                )

    @property
    def _made(self) -> dict[str, Any]:
        made = {"optimizer": self.optimizer, "scheduler": self.scheduler}
        return {name: one for name, one in made.items() if one is not None}

    def init(self, draw: Callable[[int], FewShotProblem]) -> Any:
        """The state before the first step: copies, since steps change the optimiser's own tensors."""
        return {name: copy.deepcopy(one.state_dict()) for name, one in self._made.items()}

    def set_schedule(self, halve_every: int | None) -> None:
        """Refused: schedulers of torch do it."""
        if halve_every is not None:
            raise InvalidInputError("halve_every needs a solver: with an optimizer, pass a scheduler such as StepLR")

    def restore(self, state: Any) -> None:
        """Go on from this state; the network has its parameters already."""
        for name, one in self._made.items():
            one.load_state_dict(copy.deepcopy(state[name]))

    def step(self, problem: FewShotProblem, state: Any, k: int) -> Update:
        """Step k, with the parameters of the network and the state last restored or stepped to."""
        x = {name: value.detach() for name, value in self.parameters.items()}
        lin = problem.linearize(x, problem.solve(x))
        loss, accuracy = problem.loss_and_accuracy(x, lin.y)
        h: Any = self.estimator.estimate(lin, RandomStreams(self.seeds, k)).gradient
        if not problem.x_space.is_finite(h):
            raise NonFiniteError("the hypergradient is not finite")
        for name, value in self.parameters.items():
            value.grad = h[name]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        return Update({name: value.clone() for name, value in x.items()}, self.init(lambda _: problem), loss, accuracy)

    def __repr__(self) -> str:
        scheduler = "" if self.scheduler is None else f" with {type(self.scheduler).__name__}"
        return f"{type(self.optimizer).__name__}({self.optimizer.defaults}){scheduler}, {self.estimator!r}"


Updates = SolverUpdates | OptimizerUpdates
