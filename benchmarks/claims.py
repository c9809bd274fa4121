"""How often is a claim of convergence wrong?

    python -m benchmarks.claims [CASE ...] [--methods "minimize()" "DMLCBO()" "Approx()" "Implicit()"] [--tol 1e-4]
                                [--seconds 10] [--out results/claims.json]

A claim is a status that says that x is stationary: CONVERGED, STATIONARY or CERTIFIED. It is wrong where SciPy's
L-BFGS-B, started from the returned point, lowers F by more than ten times the tolerance times the decrease of the run,
F(x0) - F. F is measured at a lower level solved independently of the library (`zoo.TrueValue`). The cases by default:
the zoo, with right derivatives and with half of x cut from the graph of g, its further cases, starts on kinks, and 50
random problems (`zoo_small`). The named solvers run with tol=; `minimize()` has its own tolerance, the same.

A case is stored as soon as it is done, and cases that FILE has are not run again. Next to it is the table, FILE.md.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import bilevel
from bilevel import Status

from .harness import reason_of
from .zoo import CLOCK, STEPS, TrueValue, by_scipy, flat, unflat
from .zoo_further import FURTHER
from .zoo_problems import CASES
from .zoo_small import KINKS, RANDOM
from .zoo_variants import make

METHODS = ("minimize()", "DMLCBO()", "Approx()", "Implicit()")
CLAIMS = (Status.CONVERGED, Status.STATIONARY, Status.CERTIFIED)
GROUPS = {
    "zoo": tuple(CASES),
    "zoo, derivatives cut": tuple(f"{name}~cut" for name in CASES),
    "further cases": tuple(FURTHER),
    "starts on kinks": tuple(KINKS),
    "random problems": tuple(RANDOM),
}
CHECK_SECONDS, FACTOR = 10.0, 10.0
"""SciPy's time, and the factor of the tolerance from which on a decrease makes a claim wrong."""


@dataclass
class Verdict:
    """How a run ended; after a claim, F at the start, at the end, and where SciPy gets from there."""

    case: str
    method: str
    status: str
    warnings: int
    first: float | None = None
    last: float | None = None
    lowest: float | None = None
    wrong: bool | None = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("cases", nargs="*", help="all cases by default")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--seconds", type=float, default=10.0, help="processor seconds of a run")
    parser.add_argument("--out", type=Path, default=Path("build/claims.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    found = [Verdict(**row) for row in json.loads(arguments.out.read_text())] if arguments.out.exists() else []
    done = {(verdict.case, verdict.method) for verdict in found}
    for name in arguments.cases or [name for names in GROUPS.values() for name in names]:
        for method in arguments.methods:
            if (name, method) not in done:
                found.append(judge(name, method, arguments.tol, arguments.seconds))
                print(_line(found[-1]), flush=True)
                arguments.out.write_text(json.dumps([asdict(verdict) for verdict in found], indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(table(found, arguments.tol))
    print(table(found, arguments.tol))


def judge(name: str, method: str, tol: float, seconds: float) -> Verdict:
    """Run a method on a case, and look at what it claims."""
    case, to_base = make(name, 0)
    options = {}
    if method != "minimize()":
        options = {"solver": getattr(bilevel.solvers, method.removesuffix("()"))(), "tol": tol}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            solution = bilevel.minimize(
                case.problem, case.x0, case.y0, steps=STEPS, seconds=seconds, clock=CLOCK, evaluate_every=20, **options
            )  # fmt: skip
        except Exception as error:  # a method that refuses a problem claims nothing
            return Verdict(name, method, f"{type(error).__name__}: {reason_of(error)}"[:90], 0)
    verdict = Verdict(name, method, solution.status.name, len(caught))
    if solution.status not in CLAIMS:
        return verdict
    base, end = name.partition("~")[0], to_base(solution.x)
    truth = TrueValue(base, 0)
    verdict.first, verdict.last = truth(to_base(case.x0)), truth(end)
    verdict.lowest = _lowest(base, end, truth)
    decrease = max(verdict.first - verdict.last, 1e-12)
    verdict.wrong = verdict.lowest < verdict.last - FACTOR * tol * decrease
    return verdict


def _lowest(base: str, end: object, truth: TrueValue) -> float:
    """F where SciPy gets from the end of a run, on the problem with right derivatives."""
    case, _ = make(base, 0)
    case.x0 = unflat(flat(end), case.x0)
    trace = [(0.0, flat(end))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_scipy(case, CHECK_SECONDS, trace)
    values = [truth(unflat(x, case.x0)) for _, x in trace[-2:]]
    return float(np.nanmin(values))


def _line(verdict: Verdict) -> str:
    claim = {True: "WRONG", False: "right", None: ""}[verdict.wrong]
    return f"{verdict.case:24s} {verdict.method:12s} {verdict.status:44.44s} warnings {verdict.warnings}  {claim}"


def table(found: list[Verdict], tol: float) -> str:
    """Claims and wrong ones by method and kind of case."""
    lines = [
        f"| claims (wrong ones) of runs, tolerance {tol:g} | {' | '.join(GROUPS)} | all |",
        f"| --- |{' --- |' * (len(GROUPS) + 1)}",
    ]
    for method in dict.fromkeys(verdict.method for verdict in found):
        own = [verdict for verdict in found if verdict.method == method]
        cells = [_cell([v for v in own if v.case in names]) for names in GROUPS.values()]
        lines.append(f"| `{method}` | {' | '.join([*cells, _cell(own)])} |")
    statuses = Counter(verdict.status.partition(":")[0] for verdict in found)
    lines += ["", "How runs ended: " + ", ".join(f"{name} {count}" for name, count in statuses.most_common()) + "."]
    return "\n".join(lines) + "\n"


def _cell(verdicts: list[Verdict]) -> str:
    claims = [verdict for verdict in verdicts if verdict.wrong is not None]
    return f"{len(claims)} ({sum(bool(v.wrong) for v in claims)}) of {len(verdicts)}"


if __name__ == "__main__":
    main()
