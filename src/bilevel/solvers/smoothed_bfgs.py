"""BFGS on F with a Newton lower level, and graduated smoothing of the projection to leave kinks and poor minima.

    F(x) = f(x, y*(x))                    value, error and gradient from one linear system (`bilevel.newton`)
    x <- x + t d,  d = -B grad F          BFGS with a weak Wolfe search (Lewis & Overton 2013)
    F_r(x) = f(x, y_r(x)),  y_r = P_r(y_r - eta grad_y g),  P_r(z) = mean_k P_Y(z + r u_k)

After the descent on F, F_r is minimised from the best point for radii r = 0.3, 0.1, 0.03 times the distance to the
kinks, and then F again from the result. The gradient of F_r also sees coordinates outside the active face, which the
exact gradient does not. P_r is a mean of proximal maps and therefore a proximal map: y_r solves a convex lower level,
and F_r has an exact gradient. The smoothing is that of Shi, Chang & Gu (2024), used here as a problem of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._checks import Settings, check_choice, check_number, setting
from .._serializable import serializable
from ..errors import InvalidTypeError, NotConvergedError
from ..newton import (
    CURVATURE_LIMIT,
    Evaluation,
    LowerLevel,
    Smoothing,
    find_descent,
    flat,
    lower_level,
)
from ..problem import Problem
from ..random import RandomStreams, Seeds
from ..spaces import Vector
from ._quasi_newton import Descent, Metric, learn
from .base import JACOBIAN, ONE_PROCESS, Need, State

STALL, STRICT_STALL, SMOOTHED_STALL = (12, 1e-3), (20, 3e-5), (8, 1e-2)
"""A descent ends when this many steps have gained less than this fraction of the progress; the last one is stricter,
those on smoothed problems less strict."""
FIRST_DECREASE = 1e-2
"""The first step of a descent has a predicted decrease of this fraction of |F|, or of the progress so far."""
FIRST_STEP = 100.0
"""The first step of all is no longer than this multiple of |x0|, unless x0 is 0."""
RESETS = 3
"""How often a stalled descent is restarted with a new metric."""
STATIONARY = 1e-9
"""A descent ends when the predicted decrease along its direction is below this fraction of the progress."""
PROMISING = 1e-6
"""The metric is reset if the predicted decrease along the last direction was at least this fraction of the progress."""
PATIENCE, SAME = 2, 1e-3
"""After this many rounds that returned to the best value, up to this fraction of the progress, only the last round is
left; rounds that end at other minima show that there may be lower ones."""
RESOLUTION = 1e-6
"""Steps with a predicted decrease below this fraction of the progress are not shortened further."""
BLURRED = 10.0
"""Convergence is not claimed if the error of F exceeds this multiple of the tolerance."""
PROBE, PROBES = 1e-2, 3
"""At the end F is evaluated near the best point, at this fraction of the way from the first point; at most this many
descents may follow."""
FREE_WORK = 2000
"""The number of gradients of g that the rounds after the first may use in any case."""
ROUND_SHARE = 0.3
"""The fraction of the remaining work that the smoothed problems of a round may use."""


HOPS = 4
"""A hop is the best of this many random points."""
INWARDS = (0.5, 0.0)
"""The best of these multiples of x is a further start if x0 was far away or F is lower there than anywhere before:
where F saturates, its minima are poor."""


FAR = (0.3, 1.0)
"""If F never decreased it may be constant around x0 and is also evaluated at these distances, in units of |x|."""


@serializable
@dataclass(frozen=True)
class Round:
    """One descent: from the "first" point, the "best" one, a "hop" from it, or a point nearer to the "origin"; directly
    or by way of smoothed problems.

    Parameters
    ----------
    start
        Where it begins.
    radii
        Smoothing radii, coarse to fine, relative to the distance to the kinks.
    hop
        The length of a hop, relative to the way from the first to the best point.
    """

    start: str
    radii: tuple[float, ...] = ()
    hop: float = 0.0

    def __post_init__(self) -> None:
        check_choice("start", self.start, ("first", "best", "hop", "origin"))
        for radius in self.radii:
            check_number("radii", radius)
        check_number("hop", self.hop, closed="left")


ROUNDS = (
    Round("first"),
    Round("origin"),
    Round("best", (0.3, 0.1, 0.03)),
    Round("first", (1.0, 0.3, 0.1, 0.03)),
    Round("hop", hop=0.3),
    Round("best", (0.1, 0.03)),
    Round("hop", hop=0.3),
    Round("hop", hop=0.1),
    Round("hop", hop=1.0),
    Round("best"),
)
"""The direct descent, descents by way of smoothed problems, hops (again while they pay), and a last descent from the
best point."""


ENDLESS = 1e30
"""If |x|, or the decrease of F, exceeds this value, F is considered unbounded below."""


@serializable
@dataclass(frozen=True)
class Phase:
    """Where the present descent stands: its metric, its values, and how often the metric was begun anew."""

    values: tuple[float, ...]
    metric: Metric | None = None
    predicted: float = 0.0
    retried: bool = False
    resets: int = 0
    slope: float = math.inf  # the decrease that the last direction promised

    @property
    def steps(self) -> int:
        return len(self.values) - 1


@dataclass(kw_only=True, repr=False)
class SmoothedBFGSState(State):
    """Where a run of `SmoothedBFGS` is: the present, the best and the first point, and the round it is in."""

    here: Evaluation
    best: Evaluation
    first: Evaluation
    phase: Phase
    round: int = 0
    radius: int = -1  # the index of the smoothing radius; -1: F itself
    distance: float = 0.0
    eta: float = 0.0
    smoothed: Evaluation | None = None  # the best point of the present smoothed problem
    found: Evaluation | None = None  # the best true point of this round's smoothed problems
    work: int = 0
    work_limit: float = math.inf
    round_limit: float = math.inf  # the work at which the smoothed problems of the present round end
    end: str = ""
    probes: int = 0
    blurred: bool = False  # whether rounding hides decreases of F that count
    nonconvex: bool = False  # whether g was seen to be nonconvex in y, which may then have several solutions
    minima: tuple[float, ...] = ()
    idle: int = 0  # rounds that have led back to the best value
    entered: float = math.inf  # the best F when the present round began
    hopped: float = -math.inf  # the best F when the hops began
    repeats: int = 0  # of the hops
    settled: float = math.inf  # the lowest F at which a descent found no lower point
    known: Any = None  # what large lower levels have learned about G_yy
    levels: dict[Any, LowerLevel] = field(default_factory=dict, compare=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        check_choice("end", self.end, ("", "converged", "stalled"))  # it comes from files, too

    @property
    def unbounded(self) -> bool:
        """Whether F seems to be unbounded below."""
        best, first = self.best, self.first
        far = float(best.x.norm()) > ENDLESS * (1.0 + float(first.x.norm()))
        return far or first.value - best.value > ENDLESS * (1.0 + abs(first.value))

    @property
    def ended(self) -> str:
        """Why there are no more rounds; empty while there are."""
        return self.end

    @property
    def falling(self) -> bool:
        """Whether the first descent is in progress and its last step was not small."""
        values, drop = self.phase.values, self.first.value - self.best.value
        if self.round > 0 or self.end or float(self.here.gradient.norm()) <= 1e-6 * float(self.first.gradient.norm()):
            return False
        return len(values) < 2 or values[-2] - values[-1] > 1e-4 * drop

    @property
    def remark(self) -> str:
        """Explain what may hide lower points, or list local minima that differ by more than 1 % of the decrease."""
        if self.unbounded:
            size = float(self.best.x.norm())
            return f"F falls without end: it is {self.best.value:.3g} where |x| is {size:.3g}; bound x"
        if self.blurred:
            known = f"F is known to {self.best.error:.1e} only, which hides smaller decreases"
            return f"{known}: use float64, or add a ridge term to g"
        drop, different = self.first.value - self.best.value, []
        for value in sorted(self.minima):
            if not different or value > different[-1] + 1e-2 * drop:
                different.append(value)
        if len(different) < 2:
            return "g is not convex in y: y may be one of several local minima" if self.nonconvex else ""
        values = ", ".join(f"{value:.6g}" for value in different[:5])
        return f"descents ended at F = {values}: another x0 or seed may find a better local minimum"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lower levels in copies and pickles: they hold the functions of the problem."""
        return {**self.__dict__, "levels": {}}


@dataclass(frozen=True, kw_only=True)
class SmoothedBFGS(Settings):
    """BFGS on F with the lower level solved by Newton steps, and smoothed problems to leave kinks and poor minima.

    No unit of x, y, f or g enters: steps, radii and tolerances are relative to F, predicted decreases or rounding.

    Parameters
    ----------
    rounds
        The descents, in order. The first and the last are always carried out; the last one is a stricter descent from
        the best point.
    draws
        The number of perturbed points over which a smoothed projection is averaged.
    smoothed_steps
        The number of steps on each smoothed problem.
    tol
        A run has converged when neither a descent nor one-sided differences around its last point decrease F by more
        than this fraction of its decrease so far.
    effort
        The rounds after the first may use this multiple of its number of gradients of g.
    """

    rounds: tuple[Round, ...] = field(default=ROUNDS, repr=False)
    draws: int = 16
    smoothed_steps: int = 25
    tol: float = 1e-4
    effort: float = setting(10.0, closed="left")

    needs: ClassVar[tuple[Need, ...]] = (JACOBIAN, ONE_PROCESS)

    def __post_init__(self) -> None:
        if not (isinstance(self.rounds, tuple) and self.rounds and all(isinstance(r, Round) for r in self.rounds)):
            raise InvalidTypeError(f'rounds must be a tuple such as (Round("first"), ...), got {self.rounds!r}')
        super().__post_init__()

    def init(self, problem: Problem, x: Vector, y: Vector, seeds: Seeds) -> SmoothedBFGSState:
        """The first point, its lower level solved."""
        level = lower_level(problem, x, y)
        start = Descent(level, problem.upper_constraint).project(flat(x).double())
        first = level.evaluate(start, relative=1e-4)
        if not first.ok:
            raise NotConvergedError(
                "F could not be evaluated at x0: the lower level has no solution that Newton steps find; "
                "is g strongly convex in y?"
            )
        level.curvature_limit = CURVATURE_LIMIT * first.curvature
        return SmoothedBFGSState(
            x=level.tree_x(start),
            y=level.tree_y(first.y),
            seeds=seeds,
            here=first,
            best=first,
            first=first,
            phase=Phase((first.value,)),
            work=level.work,
            known=level.known,
            nonconvex=level.nonconvex,
            levels={None: level},
        )

    def step(self, problem: Problem, state: SmoothedBFGSState) -> SmoothedBFGSState:
        """The next accepted point of the current round; the best point after the last round."""
        walk = _Walk(self, problem, replace(state))
        while not walk.state.end and not walk.advance():
            walk.turn()
        return walk.next_state()

    def result(self, problem: Problem, state: SmoothedBFGSState) -> tuple[Vector, Vector]:
        """The best point, with its lower level solved once more."""
        level, best = lower_level(problem, state.x, state.y), state.best
        solved = level.evaluate(best.x, 1e-9 * abs(best.value), replace(best, system=None))
        return level.tree_x(best.x), level.tree_y(solved.y if solved.ok else best.y)


class _Walk:
    """One step of the method: the next accepted point, or the change from one descent to the next."""

    def __init__(self, settings: SmoothedBFGS, problem: Problem, state: SmoothedBFGSState) -> None:
        self.settings = settings
        self.problem = problem
        self.state = state
        self.reason = ""

    def next_state(self) -> SmoothedBFGSState:
        """The state after this step."""
        s, level = self.state, self.level(None)
        if s.end and s.best.ok:
            s.here = s.best
        s.step += 1
        if s.here.ok:
            s.x, s.y = level.tree_x(s.here.x), level.tree_y(s.here.y)
        return s

    # --- F and its smoothed forms -----------------------------------------------------------------------------------

    @property
    def smoothing(self) -> Smoothing | None:
        """The smoothing of the current descent."""
        s = self.state
        if s.radius < 0:
            return None
        return Smoothing(self.settings.rounds[s.round].radii[s.radius] * s.distance, s.eta, self.settings.draws)

    def level(self, smoothing: Smoothing | None) -> LowerLevel:
        """The lower level with this smoothing; the unsmoothed one and the last smoothed one are cached."""
        s = self.state
        s.levels = {key: level for key, level in s.levels.items() if level.problem is self.problem}
        if smoothing not in s.levels:
            limit = CURVATURE_LIMIT * s.first.curvature
            kept = {key: level for key, level in s.levels.items() if key is None}
            s.levels = {**kept, smoothing: lower_level(self.problem, s.x, s.y, smoothing, limit)}
        level = s.levels[smoothing]
        level.limit = math.inf if smoothing is None else level.work + s.round_limit - s.work
        level.known = level.known if s.known is None else s.known
        return level

    def evaluate(self, smoothing: Smoothing | None, x: Tensor, near: Evaluation, scale: float = 0.0) -> Evaluation:
        """F at x to 1e-4 of |F| or of a larger scale."""
        level = self.level(smoothing)
        before = level.work
        point = level.evaluate(x, 1e-4 * scale if scale else math.inf, near, relative=1e-4)
        self._count(level, before)
        return point

    def _count(self, level: LowerLevel, before: int) -> None:
        self.state.work += level.work - before
        self.state.known, self.state.nonconvex = level.known, self.state.nonconvex or level.nonconvex

    # --- the best point ---------------------------------------------------------------------------------------------

    @property
    def drop(self) -> float:
        """The decrease of F so far."""
        return self.state.first.value - self.state.best.value

    @property
    def scale(self) -> float:
        """The size of F and of its changes."""
        return max(abs(self.state.best.value), self.drop)

    def trusted(self, new: Evaluation) -> bool:
        """Whether F of a new point is exact enough to be compared with the best value."""
        return new.ok and new.error < 1e-3 * max(abs(new.value), self.state.best.value - new.value)

    def offer(self, *points: Evaluation) -> None:
        """Replace the best point by a better one."""
        s = self.state
        for point in points:
            if s.radius >= 0:
                if point.ok and (s.smoothed is None or point.value < s.smoothed.value):
                    s.smoothed = point
            elif point.ok and point.value < s.best.value and self.trusted(point):
                s.best = point

    # --- one step of a descent --------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Take one accepted step; False, with the reason, when the current descent is over."""
        s, phase, here = self.state, self.state.phase, self.state.here
        progress = self._progress()
        reason = self._stalled(progress)
        if reason:
            return self._over(reason)
        level = self.level(self.smoothing)
        descent = Descent(level, self.problem.upper_constraint)
        d = descent.direction(here, phase.metric, phase.predicted or FIRST_DECREASE * _size_of(here))
        d = d if phase.metric is not None else self._shortened(d)
        slope = float(here.gradient @ d)
        if not -slope > max(STATIONARY * progress, 0.1 * here.error if math.isfinite(here.error) else 0.0):
            if phase.metric is None or phase.retried:
                return self._over("stationary")
            s.phase = replace(phase, metric=None, retried=True)
            return self.advance()
        phase = s.phase = replace(phase, slope=-slope)
        before = level.work
        least = RESOLUTION * max(progress, self.drop)
        there, tried = descent.search(here, d, 4.0 if phase.metric is None else 2.0, least)
        self._count(level, before)
        self.offer(*tried)
        if there is None:
            return self._over("line search")
        self.offer(there)
        s.phase = replace(phase, metric=learn(phase.metric, here, there), values=(*phase.values, there.value))
        s.here = there
        return True

    def _shortened(self, d: Tensor) -> Tensor:
        """A step by its predicted decrease, no longer than the way so far: predictions are useless if h is tiny."""
        first, length = self.state.first.x, float(d.norm())
        way = float((self.state.best.x - first).norm()) or FIRST_STEP * float(first.norm())
        return d * (way / length) if 0 < way < length else d

    def _progress(self) -> float:
        """The decrease to which small decreases are compared: that of the run, or of the smoothed problem."""
        s, values = self.state, self.state.phase.values
        if s.radius >= 0:
            return values[0] - min(values)
        return max(values[0], s.first.value) - s.best.value

    def _stalled(self, progress: float) -> str:
        s, values = self.state, self.state.phase.values
        if s.unbounded or not float(s.here.gradient.norm()) > 0:
            return "stationary"
        if s.radius >= 0 and (s.phase.steps >= self.settings.smoothed_steps or s.work > s.round_limit):
            return "steps"
        last = s.round == len(self.settings.rounds) - 1
        count, share = SMOOTHED_STALL if s.radius >= 0 else STRICT_STALL if last else STALL
        return "slow" if len(values) > count and values[-count] - values[-1] <= share * progress else ""

    def _over(self, reason: str) -> bool:
        self.reason = reason
        return False

    # --- from one descent to the next -------------------------------------------------------------------------------

    def turn(self) -> None:
        """Reset the metric if it is unusable, or go to the next smoothing radius or the next round."""
        s, phase = self.state, self.state.phase
        if s.radius >= 0:
            self._leave_smoothed()
            return
        pays = phase.resets == 0 or phase.values[0] - s.here.value > 1e-3 * self.drop
        promising = phase.slope > PROMISING * self.drop
        if self.reason in ("line search", "slow") and phase.resets < RESETS and pays and promising:
            predicted = min(FIRST_DECREASE * self.drop, 100 * phase.slope)
            self._descend(s.here, predicted=predicted, resets=phase.resets + 1)
            return
        s.minima = (*s.minima, s.here.value)
        if self.reason != "slow":
            s.settled = min(s.settled, s.here.value)
        if s.round == 0:
            flawed = any((self.problem.flaws or {}).values())  # further descents by wrong derivatives lead nowhere
            s.work_limit = 0 if flawed else (1.0 + self.settings.effort) * s.work + FREE_WORK
        self._begin(s.round + 1, s.here.value)

    def _begin(self, first: int, end: float = math.inf) -> None:
        """Begin the next round that is possible; the last one ended at the value `end`."""
        s, rounds = self.state, self.settings.rounds
        if s.entered - s.best.value > SAME * self.drop:
            s.idle = 0
        elif end - s.best.value <= SAME * self.drop:
            s.idle += 1
        s.entered = s.best.value
        if s.unbounded:
            s.end = "stalled"
            return
        last = len(rounds) - 1
        hops = next((index for index, round in enumerate(rounds) if round.start == "hop"), last)
        for index in range(first, len(rounds)):
            over = s.work > s.work_limit or s.idle >= PATIENCE
            if index == last and not over and s.hopped - s.best.value > SAME * self.drop:
                s.repeats += 1  # they still pay
                self._begin(hops)
                return
            if over and index < last:
                continue
            if index == hops:
                s.hopped = s.best.value
            if index == last and s.settled - s.best.value <= RESOLUTION * self.drop:
                break
            s.round, s.radius = index, -1
            s.round_limit = s.work + ROUND_SHARE * max(s.work_limit - s.work, 0.0)
            start = self._start(rounds[index])
            if start is not None and not rounds[index].radii:
                self._descend(start)
                return
            if start is not None and self._enter_smoothed(start):
                return
        self._conclude()

    def _conclude(self) -> None:
        """Solve the best point again and test F around it: a lower point there starts one more descent."""
        s, level = self.state, self.level(None)
        resolved = level.evaluate(s.best.x, 1e-6 * self.scale, replace(s.best, system=None))
        s.best = resolved if resolved.ok else s.best
        way, far, lower = float((s.best.x - s.first.x).norm()), float(s.best.x.norm()), None
        moved = way > 0 and self.drop > 0
        gain = self.settings.tol * (self.drop if moved else abs(s.best.value))
        units = {way} if moved else {far or 1.0, max(far, 1.0)}  # near 0, |x| says little
        for length in sorted(part * unit for unit in units for part in ((PROBE,) if moved else (PROBE, *FAR))):
            how = {"length": length, "gain": gain, "draws": self.settings.draws}
            lower = lower or find_descent(self.level, self.problem.upper_constraint, s.best, **how)
        s.probes += 1
        if lower is None:
            s.blurred = s.best.error > BLURRED * gain
            s.end = "stalled" if s.nonconvex or s.blurred else "converged"
        elif s.probes >= PROBES:
            self.offer(lower)
            s.end = "stalled"
        else:
            s.round = len(self.settings.rounds) - 1
            self._descend(lower)

    def _start(self, round: Round) -> Evaluation | None:
        s = self.state
        if round.start in ("first", "best"):
            return s.first if round.start == "first" else s.best
        way, size = float((s.best.x - s.first.x).norm()), math.sqrt(s.best.x.numel())
        if round.start == "origin":
            starts = [part * x for part in INWARDS for x in (s.best.x, s.first.x)] if bool(s.first.x.any()) else []
        else:
            generator = RandomStreams(s.seeds, s.repeats * len(self.settings.rounds) + s.round).generator("smoothing")
            noise = torch.randn(HOPS, *s.best.x.shape, generator=generator, dtype=torch.float64)
            starts = s.best.x + round.hop * way / size * noise
        descent, found = Descent(self.level(None), self.problem.upper_constraint), None
        for start in starts:
            point = self.evaluate(None, descent.project(start), s.best, self.scale)
            if self.trusted(point) and (found is None or point.value < found.value):
                found = point
        if round.start == "origin" and found is not None and float(s.first.x.norm()) <= way:
            return found if found.value < s.best.value else None
        return found

    def _descend(self, start: Evaluation, **how: Any) -> None:
        """Start a descent on F from this point."""
        self.state.radius, self.state.here, self.state.phase = -1, start, Phase((start.value,), **how)
        self.offer(start)

    def _enter_smoothed(self, start: Evaluation) -> bool:
        """Start the smoothed problems of this round from a point; False if no constraint is near."""
        s, level = self.state, self.level(None)
        s.distance, s.eta, s.found = level.kink_distance(start), level.smoothing_eta(start), None
        return s.distance > 0 and self._next_radius(start)

    def _next_radius(self, start: Evaluation) -> bool:
        """Start a descent on the next smoothed problem that can be solved at this point."""
        s = self.state
        while s.radius + 1 < len(self.settings.rounds[s.round].radii):
            s.radius, s.smoothed = s.radius + 1, None
            point = self.evaluate(self.smoothing, start.x, start)
            if point.ok:
                s.here, s.phase = point, Phase((point.value,))
                self.offer(point)
                return True
        return False

    def _leave_smoothed(self) -> None:
        """Evaluate F at the best smoothed point; go to the next radius or start a descent on F from the best point."""
        s = self.state
        assert s.smoothed is not None
        point = self.evaluate(None, s.smoothed.x, s.best, self.scale)
        if point.ok and (s.found is None or point.value < s.found.value):
            s.found = point
        if self._next_radius(s.smoothed):
            return
        s.radius = -1
        found = s.found
        if found is not None and self.trusted(found) and found.value < s.best.value + 0.5 * self.drop:
            self._descend(found)
        else:
            self._begin(s.round + 1)


def _size_of(here: Evaluation) -> float:
    """|F|; where F is 0, the decrease that its gradient promises for a step as long as x."""
    promised = float(here.gradient.norm()) * (float(here.x.norm()) or 1.0)
    return abs(here.value) if abs(here.value) > 1e-8 * promised else promised
