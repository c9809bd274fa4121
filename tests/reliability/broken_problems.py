"""Claims of default calls on problems that are wrong in one of 53 ways, and on correct ones.

    python -m tests.reliability.broken_problems COUNT [KIND ...]

A claim is a status that says that x is stationary: CONVERGED, STATIONARY or CERTIFIED. It is wrong where F falls by
more than ten times the tolerance nearby, or y is not y*(x). F is judged by values alone: g is minimised over the set
that was meant with differences of g for its gradient, so that no cut graph and no wrong product enters.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from tests.wrong_setups import WRONG_SETUPS, Setup, right_setup
from torch import Tensor

import bilevel
from bilevel import Status, sets
from bilevel.errors import ProblemWarning

CLAIMS = (Status.CONVERGED, Status.STATIONARY, Status.CERTIFIED)
CALLS: dict[str, dict[str, Any]] = {"default": {}, "tol": {"tol": 1e-3}, "tol and delta": {"tol": 1e-3, "delta": 1e-2}}
ALLOWED = {"default": 1e-3, "tol": 1e-2, "tol and delta": 1e-2}
"""Ten times the tolerance: relative to the decrease of F (SmoothedBFGS.tol), or the slope."""
SECONDS = 4.0
"""Processor time for the steps of one run."""
MEANT: dict[str, Callable[[int], sets.ConvexSet]] = {
    "projection missing": lambda n: sets.L1Ball(1.0),
    "projection that shrinks": lambda n: sets.Box(-1.0, 1.0),
    "oblique projection": lambda n: sets.Hyperplane(torch.ones(n).double(), 0.0),
    "radial scaling onto the l1 ball": lambda n: sets.L1Ball(1.0),
    "straight through jacobian": lambda n: sets.Box(-0.3, 0.3),
    "curved boundary taken for flat": lambda n: sets.L2Ball(1.0),
    "jacobian with the wrong sign": lambda n: sets.NonNegative(),
}
"""The sets that wrong projections stand for."""


class TrueValue:
    """F(x) by values of f and g alone."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.problem, self.meant = setup.problem, MEANT.get(name)

    def constraint(self, x: Tensor, y: Tensor) -> Any:
        return self.problem.constraint_at(x) if self.meant is None else self.meant(len(y))

    def solve(self, x: Tensor, y: Tensor, steps: int = 300) -> Tensor:
        """Projected gradient steps with a step that is halved where g does not fall enough."""
        made, step = self.constraint(x, y), 1.0
        y = made.project(y)
        value = self.lower(x, y)
        for _ in range(steps):
            slope, shorter = self.slope(x, y), False
            while True:
                new = made.project(y - step * slope)
                move = new - y
                reached = self.lower(x, new)
                if reached <= value + float(slope @ move) + float(move @ move) / (2 * step) + 1e-14 * abs(value):
                    break
                step, shorter = step / 2, True
                if step < 1e-12:
                    return y
            y, value = new, reached
            if float(move.norm()) <= 1e-10 * (1 + float(y.norm())):
                break
            step = step if shorter else 1.5 * step
        return y

    def lower(self, x: Tensor, y: Tensor) -> float:
        return float(self.problem.call_lower(x, y))

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        h = 1e-5 * max(1.0, float(y.abs().max()))
        moves = h * torch.eye(len(y), dtype=y.dtype)
        return torch.tensor([(self.lower(x, y + e) - self.lower(x, y - e)) / (2 * h) for e in moves], dtype=y.dtype)

    def value(self, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            return float(self.problem.call_upper(x, self.solve(x, y)))

    def fall(self, x: Tensor, y: Tensor, length: float) -> float:
        """How far F falls at this distance along random directions, their opposites and what they show together."""
        here, generator = self.value(x, y), torch.Generator().manual_seed(5)
        ways = torch.linalg.qr(torch.randn(len(x), len(x), generator=generator, dtype=torch.float64)).Q
        ahead, behind = ([self.value(x + s * length * d, y) for d in ways] for s in (1, -1))
        slope = sum((a - b) * d for a, b, d in zip(ahead, behind, ways, strict=True))
        size = float(slope.norm())  # type: ignore[union-attr]
        steepest = self.value(x - length / size * slope, y) if size > 0 else here  # type: ignore[operator]
        return here - min(*ahead, *behind, steepest)


def judge(name: str, setup: Setup, call: str = "default") -> dict[str, Any]:
    """What `minimize` says, and what is true."""
    began = time.process_time()
    found: dict[str, Any] = {
        "name": name,
        "call": call,
        "claim": False,
        "silent": False,
        "wrong": False,
        "warned": False,
    }
    options = {key: setup.options[key] for key in ("solver",) if key in setup.options}
    start = setup.options.get("y", setup.problem.y0)
    limit: dict[str, Any] = {"seconds": SECONDS, "clock": time.process_time}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            solution = bilevel.minimize(setup.problem, setup.x, start, **limit, **CALLS[call], **options)
        except bilevel.BilevelError as error:
            return {**found, "said": f"{type(error).__name__}: {error}", "seconds": time.process_time() - began}
    x, y = solution.x.double(), solution.y.double()
    found |= {"status": solution.status.name, "seconds": time.process_time() - began}
    found["said"] = "; ".join([str(w.message) for w in heard] + [solution.message])
    found["warned"] = any(issubclass(w.category, ProblemWarning) for w in heard)
    found["claim"] = solution.status in CLAIMS
    found["silent"] = not heard and solution.status in (*CLAIMS, Status.STEPS)
    if found["claim"] or found["silent"]:
        found |= _truth(name, setup, call, x, y, start.double())
    return found


def _truth(name: str, setup: Setup, call: str, x: Tensor, y: Tensor, start: Tensor) -> dict[str, Any]:
    truth = TrueValue(name, setup)
    now, first = truth.value(x, y), truth.value(setup.x.double(), start)
    length = 1e-3 * max(float(x.norm()), 1.0)
    size = max(first - now, 1e-3 * abs(now)) if call == "default" else length
    fall = truth.fall(x, y, 10 * length if call == "default" else length) / size
    gap = abs(float(setup.problem.call_upper(x, y)) - now) / max(abs(first - now), abs(now), 1e-9)
    return {"fall": fall, "gap of y": gap, "wrong": fall > ALLOWED[call] or gap > 1e-2}


def judged(seeds: Iterable[int], calls: tuple[str, ...] = ("default",)) -> list[dict[str, Any]]:
    """The problems of these seeds, every second one wrong, in all ways in turn."""
    found = []
    for seed in seeds:
        way = WRONG_SETUPS[seed // 2 % len(WRONG_SETUPS)]
        name, draw = ("right", right_setup) if seed % 2 else (way.name, way.draw)
        found += [{"seed": seed, **judge(name, draw(seed // 2), call)} for call in calls]
    return found


def main(count: int, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    ways = {way.name: way.draw for way in WRONG_SETUPS} | {"right": right_setup}
    for seed in range(count):
        for name in kinds or ways:
            for call in CALLS:
                print(json.dumps({"seed": seed, **judge(name, ways[name](seed), call)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
