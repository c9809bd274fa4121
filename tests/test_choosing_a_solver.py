"""The page "How to choose a solver": its cells are computed here and compared, and what it leans on exists."""

import re
from pathlib import Path

import pytest
import torch

import bilevel
from bilevel import sets
from bilevel.solvers.base import needs_of, solver_classes, unmet
from bilevel.spaces import leaves
from bilevel.testing.known_problems import known_problems

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "choosing-a-solver.md").read_text(encoding="utf-8")
COLUMNS = ("solver", "set", "smoothness", "size", "noise", "loops", "upper step", "cost", "guarantee", "reference")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| `")]
NAMED = [row for row in ROWS if row[0].strip("`") in dir(bilevel.solvers)]
TABLE = {row[0].strip("`"): dict(zip(COLUMNS, row, strict=False)) for row in NAMED}
KNOWN = {known.name: known for known in known_problems()}
each = pytest.mark.parametrize("solver_class", solver_classes(), ids=lambda cls: cls.__name__)


def cell(solver_class, column):
    return TABLE[solver_class.__name__][column]


def test_every_solver_has_a_full_row():
    assert set(TABLE) == {cls.__name__ for cls in solver_classes()}
    assert all(len(row) == len(COLUMNS) and all(row) for row in ROWS if row[0].strip("`") in TABLE)


def test_every_test_it_names_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)
    assert len(named) > 30
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{name}"


def problem_on(constraint, y0=None, **options):
    return bilevel.Problem(
        lambda x, y: (y - 1).square().sum() + x.square().sum(),
        lambda x, y: (y - x).square().sum(),
        constraint,
        x0=torch.zeros(2).double(),
        y0=torch.zeros(2).double() if y0 is None else y0,
        **options,
    )


def takes(solver_class, problem):
    """Whether the checks before the first step let the solver have the problem (a moving one as it is)."""
    return not unmet(solver_class, problem, problem.constraint_at(problem.x0), problem.y0)


ONES = torch.ones(2).double()
KINDS = {  # from the smallest class of sets to the largest
    "affine": sets.Hyperplane(ONES, 0.0),
    "linear": sets.HalfSpace(ONES, 1.0),
    "polyhedral": sets.L1Ball(1.0),
    "any": sets.L2Ball(1.0),
}
MOVING = {
    "affine": lambda x: sets.Hyperplane(ONES, x[0]),
    "linear": lambda x: sets.HalfSpace(ONES, 1.0 + x[0]),
    "polyhedral": lambda x: sets.L1Ball(1.0 + x[0]),
    "any": lambda x: sets.L2Ball(1.0 + x[0]),
}


@each
def test_sets(solver_class):
    """The largest class of sets it takes, whether they may move, and function constraints."""
    largest = [kind for kind, constraint in KINDS.items() if takes(solver_class, problem_on(constraint))][-1]
    moving = takes(solver_class, problem_on(MOVING[largest]))
    functions = takes(solver_class, problem_on(None, inequality=lambda x, y: y - 2.0))
    shown = cell(solver_class, "set")
    assert shown.startswith(f"{largest}, {'moving with x' if moving else 'rewritten'}")
    assert ("h(x, y) <= 0" in shown) == functions
    if not moving:  # a moved set becomes a fixed one, and the solver runs on it
        moved = problem_on(lambda x: sets.Translated(KINDS[largest], 0.1 * x))
        assert bilevel.minimize(moved, solver=solver_class(), steps=1).status is bilevel.Status.STEPS


@each
def test_needs_are_declared(solver_class):
    """Projection, Jacobian, projector, affine structure or function constraints, whichever applies."""
    whats = [need.what for need in needs_of(solver_class)]
    assert any("projection" in what for what in whats)
    assert any("function constraints" in what for what in whats) != getattr(solver_class, "takes_inequality", False)


def quadratic(n):
    target = torch.linspace(-1, 1, n).double()
    return bilevel.Problem(
        lambda x, y: (y - target).square().sum() + 0.1 * x.square().sum(),
        lambda x, y: (y - x).square().sum(),
        sets.AffineSet(torch.ones(1, n).double(), torch.zeros(1).double()),
        x0=torch.zeros(n).double(),
        y0=torch.zeros(n).double(),
    )


@each
def test_size(solver_class):
    """A state holds a number of vectors that does not depend on n."""

    def entries(n):
        state = bilevel.minimize(quadratic(n), solver=solver_class(), steps=1).state
        vectors = [value for value in vars(state).values() if isinstance(value, torch.Tensor | dict)]
        return sum(u.numel() for vector in vectors for u in leaves(vector) if isinstance(u, torch.Tensor))

    assert entries(40) < 2.1 * entries(20)
    assert cell(solver_class, "size").startswith("O(n")


@each
def test_noise(solver_class):
    """With a sampler the defaults run on batches, or are refused with the advice of fixed steps."""
    problem = bilevel.Problem(
        lambda x, y, batch: (y - 1).square().sum(),
        lambda x, y, batch: (y - x).square().sum(),
        sampler=lambda generator: torch.randint(3, (2,), generator=generator),
        x0=torch.zeros(2).double(),
        y0=torch.zeros(2).double(),
    )
    shown = cell(solver_class, "noise")
    if shown == "fixed steps only":
        with pytest.raises(bilevel.IncompatibleError, match="step_rule='fixed'"):
            bilevel.minimize(problem, solver=solver_class(), steps=2)
        solver = solver_class(step_rule="fixed", upper_step=0.1)
    elif shown == "all the data":
        solver = solver_class()
    else:
        assert shown.startswith("batches")
        solver = solver_class()
    assert bilevel.minimize(problem, solver=solver, steps=2).status.finished


INNER = {"inner_steps", "lower_steps", "steps", "smoothed_steps"}


@each
def test_loops(solver_class):
    """Two loops: a setting says how many lower-level steps a step takes."""
    settings = set(solver_class.__dataclass_fields__)
    assert cell(solver_class, "loops") == ("two" if settings & INNER else "one")


@each
def test_upper_step(solver_class):
    solver = solver_class()
    step = getattr(solver, "upper_step", None) or getattr(solver, "step_size", "line search")
    adaptive = ", adaptive" if getattr(solver, "step_rule", "") == "adaptive" else ""
    shown = step if isinstance(step, str) else f"{step:g}"
    assert cell(solver_class, "upper step") == shown + adaptive


SYMBOLS = {
    "f": "upper_gradients", "g": "lower_gradients", "H": "hessian_products", "C": "cross_products", "P": "projections",
    "h": "inequality_products",
}  # fmt: skip
SETTINGS = {
    "AiPOD": {"lower_steps": 4}, "EAiPOD": {"lower_steps": 4}, "VPBGD": {"lower_steps": 4, "penalty_steps": 3},
    "RMDPCD": {"steps": 4, "step_rule": "fixed", "upper_step": 0.1},
    **{name: {"step_rule": "fixed", "upper_step": 0.1} for name in ("Approx", "Implicit", "IGAL")},
}  # fmt: skip


def spent_in_a_step(problem, solver, steps=1):
    """The costs of the steps after the first two, per step; no estimate of curvature falls among them."""
    first = bilevel.minimize(problem, solver=solver, steps=2, evaluate_every=1000)
    more = bilevel.minimize(problem, resume=first, solver=solver, steps=steps, evaluate_every=1000)
    return {symbol: (more.stats[name] - first.stats[name]) / steps for symbol, name in SYMBOLS.items()}


def stated(text, letters):
    """The counts a cell states: "T + 1 g" is {"g": T + 1}."""
    counts = dict.fromkeys(SYMBOLS, 0)
    for term in text.split(","):
        amount, symbol = term.strip().rsplit(" ", 1)
        expression = re.sub(r"(\w) \(", r"\1 * (", amount)
        counts[symbol] = eval(expression, {}, letters)
    return counts


@each
def test_cost(solver_class):
    name, known = solver_class.__name__, KNOWN["affine set"]
    if cell(solver_class, "cost").startswith("a line search"):
        return
    solver = solver_class(**SETTINGS.get(name, {}))
    steps = 60 if name == "EAiPOD" else 1
    spent = spent_in_a_step(known.problem, solver, steps)
    inner = SETTINGS.get(name, {}).get("lower_steps") or SETTINGS.get(name, {}).get("steps") or spent["P"]
    letters = {"T": inner, "S": 3, "K": spent["H"], "p": getattr(solver, "probability", None)}
    expected = stated(cell(solver_class, "cost").split(";")[0], letters)
    for symbol in SYMBOLS:
        if name == "EAiPOD" and symbol == "P":  # on average
            assert spent[symbol] == pytest.approx(expected[symbol], rel=0.2)
        else:
            assert spent[symbol] == expected[symbol], symbol


@pytest.mark.parametrize(("solver_class", "products"), [(bilevel.solvers.BiCGAFFA, 3), (bilevel.solvers.LVHBA, 2)])
def test_cost_with_function_constraints(solver_class, products):
    """An affine h inside which all stays: no product is spent on the projection."""
    problem = problem_on(None, inequality=lambda x, y: y - 100.0)
    assert spent_in_a_step(problem, solver_class())["h"] == products
    assert f"with h {products} h" in cell(solver_class, "cost")
