"""The contract of a solver: settings in a frozen dataclass, `init` and `step` from State to State."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from ..problem import Problem
from ..randomness import Noise, Seeds
from ..spaces import Vector, leaves


@dataclass(kw_only=True)
class State:
    """Where a run stands: tensors and numbers only, so that a checkpoint is its content.

    Parameters
    ----------
    x, y
        The current point.
    step
        How many steps have been taken.
    seeds
        The seeds of the run.
    """

    x: Vector
    y: Vector
    step: int = 0
    seeds: Seeds = field(default_factory=Seeds)

    def noise(self, step: int | None = None) -> Noise:
        """The randomness of a step (default: the current one)."""
        return Noise(self.seeds, self.step if step is None else step)


class Solver(Protocol):
    """A method for bilevel problems."""

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> Any:
        """The state before the first step."""
        ...

    def step(self, problem: Problem, state: Any) -> Any:
        """The state after one more step; the state given is left as it was."""
        ...


def batch_of(problem: Problem, noise: Noise, y: Vector) -> Any:
    """The batch of a step: a pure function of the seed and the step number; None means all the data."""
    if problem.sampler is None:
        return None
    return problem.sampler(noise.generator("data"))


def device_of(y: Vector) -> Any:
    """The device of the first tensor of a vector."""
    return leaves(y)[0].device
