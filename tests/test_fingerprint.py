"""Fingerprints: equal contents and only they."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import bilevel
from bilevel._fingerprint import fingerprint, row_fingerprint


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
def test_different_contents_have_different_fingerprints(kind):
    found = [fingerprint(value) for value in DIFFERENT[kind]]
    assert len(set(found)) == len(found)
    assert [fingerprint(value) for value in DIFFERENT[kind]] == found


def test_layout_in_memory_is_no_content():
    matrix = torch.randn(3, 4)
    assert fingerprint(matrix) == fingerprint(matrix.T.contiguous().T) == fingerprint(matrix.clone())
    column = torch.ones(1, 30)[:, :1]  # one entry, whose stride is 30
    assert fingerprint(column) == fingerprint(torch.ones(1, 1))
    array = np.random.default_rng(0).normal(size=(3, 4))
    assert fingerprint(array) == fingerprint(np.asfortranarray(array))


def test_other_processes_find_the_same():
    code = (
        "import bilevel; from bilevel._fingerprint import fingerprint; print(fingerprint(bilevel.DMLCBO(), {'a': 1}))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == fingerprint(bilevel.DMLCBO(), {"a": 1})


@pytest.mark.parametrize("make", [
    lambda: bilevel.sets.L1Ball(1.0),
    lambda: bilevel.sets.Polyhedron(torch.eye(3).double(), torch.ones(3).double()),
    lambda: bilevel.sets.Permutahedron(torch.arange(3).double()),
    lambda: bilevel.sets.MonotoneCone(),
    lambda: bilevel.sets.Intersection(bilevel.sets.Box(0.0, 1.0), bilevel.sets.L1Ball(2.0)),
])  # fmt: skip
def test_the_use_of_a_set_leaves_its_fingerprint(make):
    used = make()
    before = fingerprint(used)
    used.project(torch.tensor([3.0, -2.0, 0.5]).double())
    used.jacobian(torch.tensor([3.0, -2.0, 0.5]).double())
    assert before == fingerprint(used) == fingerprint(make())


def test_rows_can_be_divided_and_not_exchanged():
    columns = list(np.random.default_rng(0).normal(size=(3, 10)))
    whole = row_fingerprint(columns, 0)
    parts = [row_fingerprint([column[a:b] for column in columns], a) for a, b in ((0, 4), (4, 10))]
    assert np.array(parts).sum() == whole
    assert row_fingerprint([column[::-1] for column in columns], 0) != whole
    assert row_fingerprint(columns[::-1], 0) != whole
