"""A run goes on with settings of equal content, of whatever kind they are, and notices all others."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import bilevel
from bilevel.solvers import State


@dataclass(frozen=True, kw_only=True)
class Resting:
    """A solver that stays where it is, with a setting of any kind."""

    setting: Any = None

    def init(self, problem, x, y, seeds):
        return State(x=x, y=y, seeds=seeds)

    def step(self, problem, state):
        return replace(state, step=state.step + 1)


def problem(constraint=None):
    return bilevel.Problem(
        lambda x, y: y.square().sum(),
        lambda x, y: (y - x).square().sum(),
        constraint,
        x0=torch.zeros(3).double(),
        y0=torch.zeros(3).double(),
    )


def begun(setting):
    return bilevel.minimize(problem(), solver=Resting(setting=setting), steps=1)


def goes_on(run, setting):
    try:
        return bilevel.minimize(problem(), resume=run, solver=Resting(setting=setting), steps=1).state.step == 2
    except bilevel.IncompatibleError as error:
        return "other settings of Resting: setting was" not in str(error)


@dataclass(frozen=True)
class Settings:
    rate: float = 0.1
    weights: torch.Tensor = field(default_factory=lambda: torch.ones(2))


class Loss:
    def __init__(self, scale):
        self.scale, self.me = scale, self

    def scaled(self, x):
        return self.scale * x


def scaled(factor):
    return lambda x: factor * x


def keyword(factor):
    def function(x, *, factor=factor):
        return factor * x

    return function


def named_global(factor):
    names: dict = {"factor": factor}
    exec("def function(x):\n    return factor * x", names)
    return names["function"]


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def of_class(factor):
    """Two versions of one class, with the same name and the same fields."""

    class Square:
        def value(self, x):
            return factor * x * x

    return Square()


DIFFERENT = {
    "tensors": [torch.ones(2), torch.ones(2).double(), torch.ones(1, 2), torch.tensor([1.0, 2.0])],
    "arrays": [np.ones(2), np.ones((2, 1)), np.array(["a", "b"]), np.array(["a", "b"], dtype=object), np.arange(2)],
    "sparse": [scipy.sparse.csr_matrix(matrix) for matrix in (np.eye(2), np.ones((2, 2)), np.eye(3))],
    "texts": ["a", b"a", "b", "", None, 1, 1.0, True],
    "nested": [{"a": [1, 2]}, {"a": [2, 1]}, {"b": [1, 2]}, [["a"], []], [["a", []]], {}],
    "settings": [Settings(), Settings(rate=0.2), Settings(weights=torch.zeros(2))],
    "sets": [bilevel.sets.L1Ball(torch.tensor([1.0, radius])) for radius in (2.0, 3.0)],
    "functions": [scaled(2.0), scaled(3.0), lambda x: x + 1, lambda x: x * 1, [].append, Loss(1).scaled, len],
    "objects": [Loss(1), Loss(2)],
    "partial functions": [partial(scaled, 2.0), partial(scaled, 3.0), partial(Loss, scale=2.0), partial(Loss, scale=3)],
    "unordered": [{1, 2}, {1, 3}, frozenset({1, 2}), set()],
    "slots": [Slots(1), Slots(2)],
    "others": [Path("a"), Path("b"), range(3), range(4), slice(3), re.compile("a"), re.compile("b"), torch.Tensor.sin],
    "keywords": [keyword(2.0), keyword(3.0)],
    "globals": [named_global(2.0), named_global(3.0), named_global(torch.ones(2)), named_global(scaled(1.0))],
    "classes of users": [of_class(2.0), of_class(3.0)],
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_settings_of_other_content_are_noticed(kind):
    values = DIFFERENT[kind]
    for i, value in enumerate(values):
        run = begun(value)
        assert [goes_on(run, other) for other in values] == [j == i for j in range(len(values))]


def test_layout_in_memory_is_no_content():
    matrix = torch.randn(3, 4)
    assert goes_on(begun(matrix), matrix.T.contiguous().T)
    assert goes_on(begun(matrix), matrix.clone())
    column = torch.ones(1, 30)[:, :1]  # one entry, whose stride is 30
    assert goes_on(begun(column), torch.ones(1, 1))
    array = np.random.default_rng(0).normal(size=(3, 4))
    assert goes_on(begun(array), np.asfortranarray(array))


RESUMED = """
import torch, bilevel

problem = bilevel.Problem(
    lambda x, y: y.square().sum(), lambda x, y: (y - x).square().sum(), bilevel.sets.L1Ball(torch.tensor(2.0).double()),
    x0=torch.zeros(3).double(), y0=torch.zeros(3).double(),
)
print(bilevel.minimize(problem, resume="run.safetensors", steps=1).state.step)
"""


def test_another_process_finds_the_same(tmp_path):
    ball = bilevel.sets.L1Ball(torch.tensor(2.0).double())
    bilevel.minimize(problem(ball), solver=bilevel.DMLCBO(), steps=1).save(tmp_path / "run.safetensors")
    other = subprocess.run([sys.executable, "-c", RESUMED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert other.stdout == "2\n"


@pytest.mark.parametrize("make", [
    lambda: bilevel.sets.L1Ball(1.0),
    lambda: bilevel.sets.Polyhedron(torch.eye(3).double(), torch.ones(3).double()),
    lambda: bilevel.sets.Permutahedron(torch.arange(3).double() - 1),
    lambda: bilevel.sets.MonotoneCone(),
    lambda: bilevel.sets.Intersection(bilevel.sets.Box(0.0, 1.0), bilevel.sets.L1Ball(2.0)),
])  # fmt: skip
def test_a_set_is_the_same_after_its_use(make):
    used = make()
    run = bilevel.minimize(problem(used), solver=bilevel.DMLCBO(), steps=1)
    used.project(torch.tensor([3.0, -2.0, 0.5]).double())
    used.jacobian(torch.tensor([3.0, -2.0, 0.5]).double())
    for constraint in (used, make()):
        assert bilevel.minimize(problem(constraint), resume=run, steps=1).state.step == 2
