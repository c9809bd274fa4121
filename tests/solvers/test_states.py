"""Fields of a state declare what they are like; resets, checks for NaN and files follow from that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import bilevel
from bilevel.solvers import State, like_x, like_y


@dataclass(kw_only=True)
class Declared(State):
    momentum: Any = like_x()
    slope: Any = like_y(reset="zero", default=None)
    adjoint: Any = like_y(reset="none", default=None)
    auxiliary: Any = like_y(reset="y", default=None)
    moment: Any = like_y(reset="keep", default=None)
    note: float = float("nan")


def declared(**fields: Any) -> Declared:
    return Declared(**{"x": torch.ones(2), "y": torch.ones(3), "momentum": torch.ones(2), **fields})


def test_new_lower_levels_reset_what_is_declared_like_y():
    state = declared(slope=torch.ones(3), adjoint=torch.ones(3), auxiliary=torch.ones(3), moment=torch.ones(()))
    y = torch.full((3,), 5.0)
    new = state.reset_lower(y)
    assert new.y is y
    assert new.auxiliary is y
    assert new.slope.tolist() == [0.0, 0.0, 0.0]
    assert new.adjoint is None
    assert new.moment is state.moment
    assert new.momentum is state.momentum
    assert new.x is state.x
    with pytest.raises(bilevel.InvalidInputError, match=r"y is float32\[2\], but the state has float32\[3\]"):
        state.reset_lower(torch.ones(2))


@pytest.mark.parametrize("name", ["x", "y", "momentum", "adjoint"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_entry_of_a_declared_field_is_seen(name, bad):
    assert declared().is_finite()  # a number that is not declared may be NaN, and a field may be None
    vector = torch.ones(3)
    vector[1] = bad
    assert not declared(**{name: vector}).is_finite()
    assert not declared(**{name: {"a": torch.ones(2), "b": vector}}).is_finite()


def test_finite_entries_whose_sum_overflows_are_finite():
    assert declared(x=torch.full((4,), 3e38)).is_finite()
    assert not declared(x=torch.tensor([float("inf"), -float("inf")])).is_finite()


def test_names_of_the_librarys_states_are_taken():
    with pytest.raises(bilevel.InvalidInputError, match="DMLCBOState is the name of a class of the library"):
        type("DMLCBOState", (State,), {})


def test_solvers_are_found_by_name_at_the_top():
    assert bilevel.solvers.VPBGD is bilevel.solvers.VPBGD
    with pytest.raises(AttributeError, match="no attribute 'NoSuchSolver'"):
        bilevel.NoSuchSolver
