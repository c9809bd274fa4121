"""Bad input: an error of ours that names argument, value and remedy, before the first iteration."""

import math

import pytest
import torch

import bilevel
from bilevel import sets

X, Y = torch.zeros(3).double(), torch.zeros(3).double()


def quadratic(**options):
    return bilevel.Problem(
        options.pop("upper", lambda x, y: y.square().sum()),
        options.pop("lower", lambda x, y: (y - x).square().sum()),
        **options,
    )


def run(problem=None, x0=X, y0=Y, **options):
    return bilevel.minimize(
        quadratic() if problem is None else problem, x0, y0, steps=1, **{"solver": bilevel.DMLCBO(), **options}
    )


CASES = {
    "nan in x0": (lambda: run(x0=torch.tensor([0.0, math.nan])), ["x0", "1 NaN or infinite", "[1]"]),
    "infinite y0": (lambda: run(y0=torch.tensor([math.inf])), ["y0", "NaN or infinite"]),
    "integer x0": (lambda: run(x0=torch.zeros(3, dtype=torch.int64)), ["x0", "torch.int64", "x0.double()"]),
    "float16 x0": (lambda: run(x0=X.half()), ["x0", "torch.float16", "use float32 or float64"]),
    "nested x0": (lambda: run(x0=torch.nested.nested_tensor([X, Y], layout=torch.jagged)), ["x0", "nested"]),
    "list as x0": (lambda: run(x0=[1.0, 2.0]), ["x0", "list", "torch.as_tensor"]),
    "no x0": (lambda: run(x0=None), ["x0", "NoneType"]),
    "no y0": (lambda: run(y0=None), ["no start", "minimize and solve_lower y0", "Problem(..., y0=...)"]),
    "empty x0": (lambda: run(x0=torch.zeros(0)), ["x0", "empty", "(0,)"]),
    "empty y0": (lambda: run(y0={}), ["y0", "empty"]),
    "shape that does not fit": (
        lambda: run(quadratic(constraint=sets.Box(torch.zeros(4).double(), 1.0))), ["y0", "Box", "4"]
    ),
    "dictionary for one tensor's set": (
        lambda: run(quadratic(constraint=sets.L1Ball(1.0)), y0={"a": Y}), ["y0", "dictionary", "ProductSet"]
    ),
    "tensor for a product set": (
        lambda: run(quadratic(constraint=sets.ProductSet({"a": sets.Box(0, 1)}))), ["y0", "dictionary"]
    ),
    "projection that hides x": (
        lambda: run(quadratic(constraint=lambda x: sets.from_projection(lambda z: z.clamp(max=x[0])))),
        ["from_projection", "do not reach x", "Translated or Scaled"],
    ),
    "vector-valued f": (lambda: run(quadratic(upper=lambda x, y: y)), ["upper", "(3,)", "mean()"]),
    "f returns a float": (lambda: run(quadratic(upper=lambda x, y: 1.0)), ["upper", "float", "scalar torch tensor"]),
    "vector-valued g": (lambda: run(quadratic(lower=lambda x, y: y - x)), ["lower", "(3,)"]),
    "integer f": (lambda: run(quadratic(upper=lambda x, y: torch.tensor(1))), ["upper", "int64"]),
    "nan f": (lambda: run(quadratic(upper=lambda x, y: y.sum() / 0 * 0)), ["upper(x0, y0) is nan"]),
    "infinite g": (lambda: run(quadratic(lower=lambda x, y: 1 / (y - x).square().sum())), ["lower(x0, y0) is inf"]),
    "g without y": (lambda: run(quadratic(lower=lambda x, y: x.square().sum())), ["lower does not depend on y"]),
    "g detached": (
        lambda: run(quadratic(lower=lambda x, y: (y.detach() - x).square().sum())),
        ["lower does not depend on y", "detach()"],
    ),
    "f without y": (
        lambda: run(quadratic(upper=lambda x, y: x.square().sum())), ["upper does not depend on y", "f(x) alone"]
    ),
    "nothing depends on x": (
        lambda: run(quadratic(lower=lambda x, y: y.square().sum())), ["depends on x", "F does not depend on x"]
    ),
    "g couples x only additively": (
        lambda: run(quadratic(lower=lambda x, y: y.square().sum() + x.sum())), ["F does not depend on x"]
    ),
    "f constant": (
        lambda: run(quadratic(upper=lambda x, y: torch.tensor(1.0))), ["upper depends neither on x nor on y"]
    ),
    "infinite gradient": (
        lambda: run(quadratic(upper=lambda x, y: y.abs().sqrt().sum())), ["gradient of upper in y", "differentiable"]
    ),
    "x0 of the wrong shape": (
        lambda: run(quadratic(lower=lambda x, y: (y @ torch.ones(3, 2).double() - x).square().sum())),
        ["lower(x0, y0) failed", "x0 is torch.float64 of shape (3,)", "shapes"],
    ),
    "x0 of the wrong dtype": (
        lambda: run(quadratic(upper=lambda x, y: (torch.ones(3, 3).double() @ y).sum()), y0=torch.zeros(3)),
        ["upper(x0, y0) failed", "y0 is torch.float32", "dtypes"],
    ),
    "a set that ignores x": (
        lambda: run(quadratic(constraint=lambda x: sets.L1Ball(x.detach().sum().item() + 1.0))),
        ["constraint(x)", "detach()"],
    ),
    "dictionary x0 for one tensor's set": (
        lambda: run(quadratic(upper_constraint=sets.L1Ball(1.0)), x0={"a": X}), ["x0", "L1Ball"]
    ),
    "estimator class": (lambda: bilevel.DMLCBO(hypergradient=bilevel.LinearSolve), ["hypergradient", "LinearSolve()"]),
    "radius a word": (lambda: bilevel.hypergradients.Perturbed(radius="a"), ["radius", "'a'"]),
    "momentum a word": (lambda: bilevel.DMLCBO(upper_momentum="a"), ["upper_momentum", "'a'"]),
    "radius of shape (1,)": (
        lambda: run(quadratic(constraint=lambda x: sets.L1Ball(x[:1].exp()))), ["(1, 3)", "0-dimensional", "x[0]"]
    ),
    "a class as constraint": (lambda: quadratic(constraint=sets.NonNegative), ["class NonNegative", "an instance"]),
    "a class as upper constraint": (
        lambda: quadratic(upper_constraint=sets.NonNegative), ["upper_constraint is the class", "instance"]
    ),
    "a dictionary as constraint": (
        lambda: quadratic(constraint={"a": sets.NonNegative()}), ["constraint is a dictionary", "ProductSet"]
    ),
    "a sampler without a generator": (
        lambda: run(quadratic(sampler=lambda: 3)), ["sampler(generator) failed", "one torch.Generator"]
    ),
    "functions without a batch": (
        lambda: run(quadratic(sampler=lambda generator: 3)), ["upper(x0, y0, batch) failed", "three arguments"]
    ),
    "functions that need a batch": (
        lambda: run(
            quadratic(
                upper=lambda x, y, batch: y[batch].sum(),
                lower=lambda x, y, batch: (y[batch] - x[batch]).sum(dim=0).square() + batch.sum(),
                sampler=lambda generator: torch.arange(2),
            )
        ),
        ["lower(x0, y0) failed", "batch=None means all the data"],
    ),
    "function constraints with a solver that ignores them": (
        lambda: run(quadratic(inequality=lambda x, y: y - 1.0)),
        ["DMLCBO cannot use", "inequality=h", "BiCGAFFA, LVHBA"],
    ),
    "hypergradient outside the set": (
        lambda: bilevel.hypergradient(quadratic(constraint=sets.NonNegative()), X, -torch.ones(3).double()),
        ["y is not in", "NonNegative"],
    ),
    "upper is not a function": (lambda: bilevel.Problem(1.0, lambda x, y: y.sum()), ["upper", "1.0"]),
    "constraint is not a set": (lambda: quadratic(constraint=3), ["constraint", "3"]),
    "constraint returns no set": (lambda: run(quadratic(constraint=lambda x: 1.0)), ["constraint(x)", "1.0"]),
    "negative radius": (lambda: sets.L1Ball(-1.0), ["radius", "-1"]),
    "nan radius": (lambda: sets.L2Ball(math.nan), ["radius", "nan"]),
    "negative simplex": (lambda: sets.Simplex(-1.0), ["radius", "at least 0", "-1"]),
    "l above u": (lambda: sets.Box(1.0, 0.0), ["lower", "upper", "1"]),
    "nan bound": (lambda: sets.Box(math.nan, 0.0), ["lower", "NaN"]),
    "zero normal": (lambda: sets.HalfSpace(torch.zeros(2), 1.0), ["normal"]),
    "no solution": (
        lambda: sets.AffineSet(torch.tensor([[1.0, 0], [1, 0]]), torch.tensor([0.0, 1])), ["no solution", "0.5"]
    ),
    "Q < 1": (lambda: bilevel.Neumann(terms=0), ["terms", "0"]),
    "Q not whole": (lambda: bilevel.Neumann(terms=2.5), ["terms", "2.5"]),
    "eta negative": (lambda: bilevel.Neumann(eta=-0.5), ["eta", "-0.5"]),
    "eta a word": (lambda: bilevel.LinearSolve(eta="large"), ["eta", "auto", "large"]),
    "truncation": (lambda: bilevel.Neumann(truncation="half"), ["truncation", "half"]),
    "smoothing radius": (lambda: bilevel.hypergradients.Perturbed(radius=0.0), ["radius", "Exact()"]),
    "directions": (lambda: bilevel.hypergradients.TwoPoint(directions=0), ["directions", "0"]),
    "two-point in a linear solve": (
        lambda: bilevel.LinearSolve(smoothing=bilevel.hypergradients.TwoPoint()), ["TwoPoint", "Neumann"]
    ),
    "linear tolerance": (lambda: bilevel.LinearSolve(tol=0.0), ["tol", "0.0"]),
    "unrolled steps": (lambda: bilevel.Unrolled(steps=0), ["steps", "0"]),
    "rate too large": (lambda: bilevel.DMLCBO(rate=20.0), ["rate (t)", "1.99", "eta_1"]),
    "c1 too large": (lambda: bilevel.DMLCBO(upper_momentum=11.0), ["upper_momentum (c1)", "1.095"]),
    "c2 too large": (lambda: bilevel.DMLCBO(lower_momentum=11.0), ["lower_momentum (c2)", "1.095"]),
    "negative step": (lambda: bilevel.DMLCBO(upper_step=-1.0), ["upper_step", "-1.0"]),
    "c_l above c_u": (lambda: bilevel.DMLCBO(smallest_scale=2.0, largest_scale=1.0), ["c_l", "c_u", "2", "1"]),
    "adaptivity": (lambda: bilevel.DMLCBO(adaptivity="vector"), ["adaptivity", "vector"]),
    "moment decay": (lambda: bilevel.DMLCBO(moment_decay=1.0), ["moment_decay", "1.0"]),
    "steps": (lambda: bilevel.minimize(quadratic(), X, Y, steps=0, solver=bilevel.DMLCBO()), ["steps", "0"]),
    "evaluate_every": (lambda: run(evaluate_every=0), ["evaluate_every", "0"]),
    "tol": (lambda: run(tol=-1.0), ["tol", "-1.0"]),
    "output": (lambda: run(output="middle"), ["output", "middle", "best"]),
    "solver class instead of object": (lambda: run(solver=bilevel.DMLCBO), ["solver", "bilevel.DMLCBO()"]),
    "no problem": (lambda: bilevel.minimize(3, X, Y, solver=bilevel.DMLCBO()), ["problem", "int"]),
    "seed": (lambda: run(seed=-1), ["seed", "-1"]),
    "seed type": (lambda: run(seed=1.5), ["seed", "1.5"]),
    "resume": (lambda: bilevel.minimize(quadratic(), resume=3), ["resume", "int"]),
    "lower tolerance": (lambda: bilevel.solve_lower(quadratic(), X, Y, tol=0), ["tol", "0"]),
    "argmin without a start": (lambda: bilevel.argmin(quadratic(), X), ["no start: pass y"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_message_names_argument_value_and_remedy(name):
    call, words = CASES[name]
    with pytest.raises(bilevel.BilevelError) as caught:
        call()
    assert isinstance(caught.value, ValueError | TypeError)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_start_outside_of_its_sets_is_projected():
    problem = quadratic(constraint=sets.NonNegative(), upper_constraint=sets.Box(1.0, 2.0))
    with pytest.warns(bilevel.errors.ProblemWarning) as caught:
        solution = bilevel.minimize(problem, 5 + X, Y - 1)
    assert [str(w.message)[:9] for w in caught] == ["x0 is not", "y0 is not"]
    assert "in Box(lower=1, upper=2): an entry leaves its bounds (by 3" in str(caught[0].message)
    torch.testing.assert_close(solution.x, torch.ones(3).double())


def test_an_upper_level_without_x_is_normal():
    assert run().status is bilevel.Status.STEPS


def test_an_unsolved_lower_level_is_announced():
    steep = torch.diag(torch.tensor([1.0, 1e-8])).double()
    problem = quadratic(
        upper=lambda x, y: y.sum(),
        lower=lambda x, y: (y - x) @ steep @ (y - x) + 0.1 * (y - x).pow(4).sum(),
        y0=torch.ones(2).double(),
    )
    with pytest.warns(bilevel.errors.LowerLevelWarning, match="residual .* after .* steps; raise max_steps"):
        bilevel.upper_value(problem, torch.zeros(2).double(), tol=1e-14, max_steps=5)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'minimise'"):
        bilevel.minimise
