"""A run goes on with its own problem and solver; others are noticed, and named."""

from __future__ import annotations

import functools

import pytest
import torch

import bilevel
from bilevel import sets

START = torch.zeros(3).double()
TARGET = torch.tensor([0.5, -0.2, 0.1]).double()


def problem(**parts):
    given = {
        "upper": lambda x, y: (y - TARGET).square().sum(),
        "lower": lambda x, y: (y - x).square().sum(),
        "constraint": sets.L1Ball(torch.tensor(1.0).double()),
        **parts,
    }
    return bilevel.Problem(**given, x0=START, y0=START)


OTHERS = {
    "another f": ({"upper": lambda x, y: (y - 1.001 * TARGET).square().sum()}, "^f is not that of the run to resume"),
    "another g": ({"lower": lambda x, y: (y - x).square().sum() + 1e-5 * y.square().sum()}, "^g is not that of"),
    "a cut f": ({"upper": lambda x, y: (y.detach() - TARGET).square().sum() + 0 * y.sum()}, "^f is not that of"),
    "a cut g": ({"lower": lambda x, y: (y - x.detach()).square().sum()}, "^the mixed derivative of g is not that of"),
    "a sampler": (
        {
            "upper": lambda x, y, batch: (y - TARGET).square().sum(),
            "lower": lambda x, y, batch: (y - x).square().sum(),
            "sampler": lambda generator: torch.randint(3, (2,), generator=generator),
        },
        "the sampler is not that of .*none then, of batches now",
    ),
    "function constraints": (
        {"inequality": lambda x, y: y[:1] - 9.0},
        "the inequality is not that of .*none then, a function now",
    ),
    "another kind of set": ({"constraint": sets.L2Ball(1.0)}, "the kind of the set of y .*L1Ball then, L2Ball now"),
    "another radius": ({"constraint": sets.L1Ball(torch.tensor(1.001).double())}, "set of y, its radius, is not that"),
    "a set that moves": ({"constraint": lambda x: sets.L1Ball(1 + x.square().sum())}, "the kind of the set of y"),
    "a set of x": ({"upper_constraint": sets.Box(-9.0, 9.0)}, "the kind of the set of x .*FreeSpace then, Box now"),
}


def half(place, tmp_path):
    """A run of ten steps: in memory, saved, or its checkpoint."""
    path = tmp_path / "run.safetensors"
    solution = bilevel.minimize(
        problem(), steps=10, checkpoint=path if place == "checkpoint" else None, solver=bilevel.DMLCBO(upper_step=0.1)
    )
    return solution if place == "memory" else path if place == "checkpoint" else solution.save(path)


@pytest.mark.parametrize("place", ["memory", "saved", "checkpoint"])
@pytest.mark.parametrize("other", OTHERS)
def test_another_problem_is_noticed_and_named(other, place, tmp_path):
    parts, message = OTHERS[other]
    with pytest.raises(bilevel.IncompatibleError, match=message) as caught:
        bilevel.minimize(problem(**parts), resume=half(place, tmp_path), steps=5)
    assert "x0=solution.x, y0=solution.y" in str(caught.value)


@pytest.mark.parametrize("place", ["memory", "saved", "checkpoint"])
def test_the_same_problem_made_again_goes_on_with_the_same_bits(place, tmp_path):
    whole = bilevel.minimize(problem(), steps=15, solver=bilevel.DMLCBO(upper_step=0.1))
    assert torch.equal(bilevel.minimize(problem(), resume=half(place, tmp_path), steps=5).x, whole.x)


@pytest.mark.parametrize("base", [sets.L1Ball(1.0), sets.L1Ball(1.1)])
def test_a_set_that_moves_is_known_by_its_projections(base, tmp_path):
    """For solvers that need a fixed set the problem is rewritten; what is compared is that of the user."""

    def moving(ball):
        return problem(constraint=lambda x: sets.Translated(ball, x))

    solver = bilevel.solvers.BiCGAFFA()
    path = tmp_path / "run.safetensors"
    bilevel.minimize(moving(sets.L1Ball(1.0)), solver=solver, steps=10, checkpoint=path)
    resume = functools.partial(bilevel.minimize, moving(base), solver=solver, resume=path, steps=5)
    if base.radius == 1.0:
        assert resume().state.step == 15
    else:
        with pytest.raises(bilevel.IncompatibleError, match="the set of y is not that of"):
            resume()


@pytest.mark.filterwarnings("ignore:[fg] differs between two calls:bilevel.errors.ProblemWarning")
def test_functions_that_draw_numbers_or_refuse_points_are_left_out(tmp_path):
    """Dropout differs from call to call, and a logarithm has no value at every point: neither stops a resume."""

    def noisy(x, y):
        return (y - TARGET).square().sum() + 1e-3 * torch.rand(()).double()

    def refusing(x, y):
        if x.abs().max() > 0.5:
            raise RuntimeError("not here")
        return (y - x).square().sum()

    both = problem(upper=noisy, lower=refusing, constraint=None)
    path = tmp_path / "run.safetensors"
    solution = bilevel.minimize(both, steps=1, checkpoint=path, solver=bilevel.DMLCBO(upper_step=0.1))
    assert not {"f", "g"} & set(solution.document.identity)


@pytest.mark.filterwarnings("ignore:[fg] differs between two calls:bilevel.errors.ProblemWarning")
def test_looking_at_the_problem_takes_nothing_from_the_generator(tmp_path):
    def noisy(x, y):
        return (y - TARGET).square().sum() + 1e-3 * torch.rand(()).double() * y.sum()

    found = []
    for checkpoint in (None, tmp_path / "run.safetensors"):
        torch.manual_seed(3)
        found.append(
            bilevel.minimize(
                problem(upper=noisy), steps=10, checkpoint=checkpoint, solver=bilevel.DMLCBO(upper_step=0.1)
            ).x
        )
    assert torch.equal(*found)


@pytest.mark.parametrize(("solver", "message"), [
    (bilevel.DMLCBO(upper_step=0.3), "upper_step was .* and is 0.3"),
    (bilevel.DMLCBO(upper_step=0.1, hypergradient=bilevel.Neumann(terms=3)), "hypergradient was .* and is Neumann"),
])  # fmt: skip
def test_other_settings_of_the_solver_are_refused(solver, message, tmp_path):
    resume = half("checkpoint", tmp_path)
    assert bilevel.minimize(problem(), resume=resume, solver=bilevel.DMLCBO(upper_step=0.1), steps=1).state.step == 11
    with pytest.raises(bilevel.IncompatibleError, match=f"other settings of DMLCBO: {message}"):
        bilevel.minimize(problem(), resume=resume, solver=solver, steps=5)
