"""How good are the defaults on problems that nobody tuned for?

    python -m benchmarks.zoo [CASE ...] [--methods "minimize()" SciPy "Approx()"] [--seconds 20] [--seeds 0]
                             [--variants] [--out results/zoo.json]

Every method runs with its defaults on each case (`zoo_problems`) for so many processor seconds, on one thread. SciPy is
L-BFGS-B on F with warm-started lower levels: the lines that a user would write. Then F is measured at points along the
way, at a lower level solved by accelerated projected gradients, independently of the library, and

    gap = (F - best) / (F(x0) - best),      best = the lowest F of all methods here, and of earlier runs in --best FILE

Next to FILE.json are a table, FILE.md, and the share of cases within 1 % after a
time, FILE.png.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

import bilevel
from bilevel.spaces import leaves, like

from .harness import reason_of
from .zoo_further import FURTHER
from .zoo_problems import CASES, Case
from .zoo_third import THIRD
from .zoo_variants import VARIANTS, make

METHODS = (
    "minimize()",
    "SciPy",
    "DMLCBO()",
    "Approx()",
    "Implicit()",
    "ProjectedSOBA()",
    "PenaltyMomentum()",
    "VPBGD()",
)
STEPS, POINTS = 2000, 20
"""Steps at most, and points along a run at which F is measured."""
NEAR, ROUGH = 0.01, 0.1
CLOCK = time.process_time
Trace = list[tuple[float, np.ndarray]]


@dataclass
class Outcome:
    """One run: F along the way by seconds, and how it ended."""

    case: str
    seed: int
    method: str
    status: str
    trace: list[tuple[float, float]]
    warnings: int = 0
    gap: float = math.nan
    seconds_to_near: float = math.inf

    def as_json(self) -> dict[str, Any]:
        """Its fields; None for a gap or a time that there is not."""
        plain = asdict(self)
        missing = {name: None for name in ("gap", "seconds_to_near") if not math.isfinite(plain[name])}
        return plain | missing

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Outcome:
        """The inverse of `as_json`."""
        infinite = {"gap": math.nan, "seconds_to_near": math.inf}
        return cls(
            **{name: infinite[name] if value is None and name in infinite else value for name, value in plain.items()}
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("cases", nargs="*", help="the first eleven by default")
    parser.add_argument("--further", action="store_true", help="the further cases instead")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variants", action="store_true", help="other units, a start far away, and float32 too")
    parser.add_argument("--best", type=Path, help='known values: {"case": {"best": F}}, used for seed 0')
    parser.add_argument("--add", action="store_true", help="keep the runs of other cases and methods that FILE has")
    parser.add_argument("--out", type=Path, default=Path("build/zoo.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(arguments.best.read_text()) if arguments.best else {}
    cases = arguments.cases or list(FURTHER | THIRD if arguments.further else CASES)
    names = [name + variant for name in cases for variant in _variants(name, arguments.variants)]
    outcomes = _stored(arguments.out) if arguments.add else []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        for seed in arguments.seeds:
            found = [run(name, seed, method, arguments.seconds) for method in arguments.methods]
            again = {(name, seed, method) for method in arguments.methods}
            outcomes = [old for old in outcomes if (old.case, old.seed, old.method) not in again] + found
            best = known.get(name.partition("~")[0], {}).get("best", math.inf) if seed == 0 else math.inf
            _measure([outcome for outcome in outcomes if (outcome.case, outcome.seed) == (name, seed)], best)
            for outcome in found:
                print(_line(outcome), flush=True)
            arguments.out.write_text(json.dumps([outcome.as_json() for outcome in outcomes], indent=1))
    table = summary(outcomes, arguments.seconds)
    arguments.out.with_suffix(".md").write_text(table)
    print(table)
    profile(outcomes, arguments.seconds, arguments.out.with_suffix(".png"))


def _stored(path: Path) -> list[Outcome]:
    return [Outcome.from_json(plain) for plain in json.loads(path.read_text())] if path.exists() else []


def _variants(name: str, wanted: bool) -> list[str]:
    fixed = "~" in name or name in ("mlp", "svm")
    return ["", *(f"~{variant}" for variant in VARIANTS)] if wanted and not fixed else [""]


# --- runs -------------------------------------------------------------------------------------------------------------


def run(name: str, seed: int, method: str, seconds: float) -> Outcome:
    """One method on one case, and F along its way."""
    case, to_base = make(name, seed)
    truth, trace = TrueValue(name.partition("~")[0], seed), [(0.0, flat(case.x0))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            status = by_scipy(case, seconds, trace) if method == "SciPy" else by_library(case, method, seconds, trace)
        except Exception as error:  # a method that fails is a result
            return Outcome(name, seed, method, f"{type(error).__name__}: {reason_of(error)}"[:90], [])
    picks = sorted({0, len(trace) - 1, *(np.geomspace(1, len(trace), POINTS).astype(int) - 1)})
    values = [(trace[i][0], truth(to_base(unflat(trace[i][1], case.x0)))) for i in picks]
    return Outcome(name, seed, method, status, values, len(caught))


def by_library(case: Case, method: str, seconds: float, trace: Trace) -> str:
    """`bilevel.minimize`, with its default solver or the named one at its defaults."""
    name = method.removesuffix("()")
    solver = "auto" if name == "minimize" else getattr(bilevel.solvers, name)()

    def note(record: Any, state: Any) -> None:
        trace.append((record.seconds, flat(state.x)))

    solution = bilevel.minimize(
        case.problem, case.x0, case.y0, solver=solver, steps=STEPS, seconds=seconds, clock=CLOCK,
        evaluate_every=1 if solver == "auto" else 20, callbacks=[note],
    )  # fmt: skip
    trace.append((solution.stats["seconds"], flat(solution.x)))
    return solution.status.name


def by_scipy(case: Case, seconds: float, trace: Trace) -> str:
    """L-BFGS-B on F and its gradient, each lower level started at the last."""
    problem, y, began = case.problem, case.y0, CLOCK()
    batch = () if problem.sampler is None else (None,)

    def value_and_gradient(u: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal y
        if CLOCK() - began > seconds:
            raise TimeoutError
        x = unflat(u, case.x0)
        y = bilevel.solve_lower(problem, x, y).y
        return float(problem.upper(x, y, *batch)), flat(bilevel.hypergradient(problem, x, y))

    def note(u: np.ndarray) -> None:
        trace.append((CLOCK() - began, u.copy()))

    start = flat(case.x0)
    options = {"bounds": None if case.bounds is None else [case.bounds] * len(start), "options": {"maxiter": STEPS}}
    try:
        found = scipy.optimize.minimize(
            value_and_gradient, start, jac=True, method="L-BFGS-B", callback=note, **options
        )
    except TimeoutError:
        return "TIME"
    note(found.x)
    return "success" if found.success else str(found.message)


def flat(x: Any) -> np.ndarray:
    """All entries of x as one array."""
    return joined(x).double().numpy().copy()


def joined(x: Any) -> Tensor:
    """All entries of x as one tensor."""
    return torch.cat([u.detach().reshape(-1) for u in leaves(x)])


def unflat(u: np.ndarray | Tensor, template: Any) -> Any:
    """A vector in the form of x."""
    parts = torch.as_tensor(u).split([v.numel() for v in leaves(template)])
    return like(template, [p.reshape(v.shape).to(v.dtype) for p, v in zip(parts, leaves(template), strict=True)])


# --- F ----------------------------------------------------------------------------------------------------------------


class TrueValue:
    """F of a case in float64, its lower level solved without the library's solvers."""

    def __init__(self, name: str, seed: int) -> None:
        self.case, _ = make(name, seed)
        self.y = self.case.y0

    def __call__(self, x: Any) -> float:
        case = self.case
        if not np.isfinite(flat(x)).all():
            return math.nan
        y = case.lower(x) if case.lower else accelerated(case, x, self.y if case.convex else case.y0)
        self.y = y
        return float(case.problem.upper(x, y, *(() if case.problem.sampler is None else (None,))))


def accelerated(case: Case, x: Any, y: Any, steps: int = 30_000, tol: float = 1e-11) -> Any:
    """argmin over Y of g(x, .) by accelerated projected gradients with restarts (Beck & Teboulle 2009)."""
    problem, constraint = case.problem, case.problem.constraint_at(x)
    batch = () if problem.sampler is None else (None,)

    def project(z: Tensor) -> Tensor:
        return joined(constraint.project(unflat(z, case.y0)))

    def slope(at: Tensor, graph: bool = False) -> tuple[Tensor, float, Tensor]:
        leaf = at.detach().requires_grad_()
        value = problem.lower(x, unflat(leaf, case.y0), *batch)
        return leaf, float(value.detach()), torch.autograd.grad(value, leaf, create_graph=graph)[0]

    def curvature(at: Tensor) -> float:
        leaf, _, gradient = slope(at, graph=True)
        v, size = torch.randn(at.shape, generator=torch.Generator().manual_seed(0), dtype=at.dtype), 0.0
        for _ in range(40):
            v = torch.autograd.grad(gradient, leaf, v / v.norm(), retain_graph=True)[0]
            size = float(v.norm())
            if not size > 0:
                return 1.0
        return 1.05 * size

    y = ahead = project(joined(y))
    largest, t, before = curvature(y), 1.0, math.inf
    for k in range(steps):
        _, value, gradient = slope(ahead)
        following = project(ahead - gradient / largest)
        jump, move = ahead - following, following - y
        t = 1.0 if float((jump * move).sum()) > 0 else t
        later = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y, ahead, t = following, following + (t - 1) / later * move, later
        if float(jump.norm()) <= tol * (float(y.norm()) + 1e-6):
            break
        if k % 500 == 499:
            largest = max(2 * largest if value > before + 1e-9 * abs(before) else largest, curvature(y))
            before = value
    return unflat(y, case.y0)


# --- what was found ---------------------------------------------------------------------------------------------------


def _measure(outcomes: list[Outcome], best: float) -> None:
    """Gaps and times to 1 %; the F of the start is that of the unscaled case."""
    ends = [outcome.trace[-1][1] for outcome in outcomes if outcome.trace]
    best = min([best, *(end for end in ends if math.isfinite(end))])
    for outcome in outcomes:
        if outcome.trace:
            scale = outcome.trace[0][1] - best
            gaps = [(seconds, (value - best) / scale if scale > 0 else 0.0) for seconds, value in outcome.trace]
            outcome.gap = gaps[-1][1]
            outcome.seconds_to_near = next((seconds for seconds, gap in gaps if gap <= NEAR), math.inf)


def _line(outcome: Outcome) -> str:
    return (
        f"{outcome.case:20s} seed {outcome.seed} {outcome.method:18s} gap {100 * outcome.gap:9.3f} %  "
        f"to 1 % {outcome.seconds_to_near:6.2f} s  {outcome.status[:40]}  warnings {outcome.warnings}"
    )


def summary(outcomes: list[Outcome], seconds: float) -> str:
    """The table of the methods, best first."""
    methods = list(dict.fromkeys(outcome.method for outcome in outcomes))
    rows = [(method, [outcome for outcome in outcomes if outcome.method == method]) for method in methods]
    rows.sort(key=lambda row: -sum(outcome.gap <= NEAR for outcome in row[1]))
    lines = [
        f"| {seconds:g} s each | within 1 % | within 10 % | above the start | first or within twice the first to 1 % |",
        "| --- | --- | --- | --- | --- |",
    ]
    for method, own in rows:
        near, rough = sum(o.gap <= NEAR for o in own), sum(o.gap <= ROUGH for o in own)
        above = sum(not o.trace[-1][1] <= o.trace[0][1] for o in own if o.trace)
        fast = sum(math.isfinite(o.seconds_to_near) and o.seconds_to_near <= 2 * _first(o, outcomes) for o in own)
        lines.append(f"| `{method}` | {near} of {len(own)} | {rough} | {above} | {fast} |")
    return "\n".join(lines) + "\n"


def _first(outcome: Outcome, outcomes: list[Outcome]) -> float:
    """The time to 1 % of the fastest method on this case; times under 0.02 s are not told apart."""
    same = (o.seconds_to_near for o in outcomes if (o.case, o.seed) == (outcome.case, outcome.seed))
    return max(min(same), 0.02)


def profile(outcomes: list[Outcome], seconds: float, path: Path) -> None:
    """The share of cases within 1 % after a time, by method."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for method in dict.fromkeys(outcome.method for outcome in outcomes):
        times = sorted(o.seconds_to_near for o in outcomes if o.method == method)
        reached = [t for t in times if math.isfinite(t)]
        shares = [(k + 1) / len(times) for k in range(len(reached))]
        axes.step([0.005, *(max(t, 0.005) for t in reached), seconds], [0, *shares, shares[-1] if shares else 0],
                  where="post", label=method)  # fmt: skip
    axes.set(xscale="log", xlabel="processor seconds", ylabel="share of the problems within 1 %", ylim=(0, 1.02))
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
