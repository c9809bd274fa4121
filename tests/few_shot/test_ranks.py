"""Few-shot training on several ranks is that of one process: the same network, learning curve, files and decisions."""

from __future__ import annotations

import functools
import re
import signal
import warnings
from functools import partial
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from tests.ranks import on_ranks
from torch import nn

import bilevel
from bilevel.errors import BilevelError
from bilevel.few_shot import Episodes, FewShotProblem, MetaLearner, SVMHead, generated_images
from bilevel.few_shot.options import SOLVERS
from bilevel.linearization import AutogradLinearization
from bilevel.ranks import Ranks
from bilevel.run.checkpoint import Checkpoint

pytestmark = pytest.mark.slow  # each starts several processes

METHODS = {
    **{name: partial(attrgetter(of[0])(bilevel.solvers), **of[1]) for name, of in SOLVERS.items() if name != "adam"},
    "coordinates": lambda: bilevel.solvers.RMDPCD(steps=2, step_rule="fixed", upper_step=0.01, inner="coordinate"),
    "published": lambda: bilevel.DMLCBO.as_published(gamma=0.01, tau=0.01),
    "scalar": lambda: bilevel.DMLCBO(upper_step=0.02, lower_step=0.1),
}
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
}


def images(seed=0):
    return generated_images(14, 5, 16, seed=seed)


def episodes(part=slice(0, 8), seed=0):
    return Episodes(images(seed)[part], ways=3, shots=1, queries=2, dtype=torch.float64)


def novel():
    return episodes(slice(8, 14))


def network(*, normalise=False, seed=0):
    torch.manual_seed(seed)
    # A bias before a normalisation has no effect, and a gradient of rounding errors that Adam would scale up.
    layers = [nn.Conv2d(1, 4, 3, padding=1, bias=not normalise), nn.MaxPool2d(4), nn.ELU()]
    if normalise:
        layers.insert(1, nn.BatchNorm2d(4))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5)).double()


def learner(ranks, method="dmlcbo", *, normalise=False, tasks=4, seed=0, coding="centred"):
    how = {"optimizer": OPTIMIZERS[method]} if method in OPTIMIZERS else {"solver": METHODS[method]()}
    head = SVMHead(3, coding=coding)
    return MetaLearner(network(normalise=normalise), head, tasks_per_step=tasks, seed=seed, ranks=ranks, **how)


def numbers(made):
    """The network's parameters and buffers of the latest step, rounded to nothing."""
    return [value.double().flatten().tolist() for value in made.state.network.values()]


def trained(ranks, method, settings=None, steps=4):
    made = learner(ranks, method, **(settings or {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = made.fit(episodes(), steps=steps, evaluate_every=2, validate=novel(), validate_count=10)
    assert training.status.ok, training.message
    curve = [
        (record.step, record.seconds, record.loss, record.accuracy, record.validation) for record in training.history
    ]
    return numbers(made), curve


def flat(lists):
    return torch.tensor([number for values in lists for number in values], dtype=torch.float64)


def check_same(one, others):
    """The same bits on all ranks, and those of one process to 1e-10."""
    assert all(other == others[0] for other in others)
    (expected, curve), (found, other_curve) = one, others[0]
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-10, atol=1e-12)
    for (step, _, *values), (other_step, _, *other_values) in zip(curve, other_curve, strict=True):
        assert step == other_step
        assert other_values == pytest.approx(values, rel=1e-10)


NORMALISED = {"normalise": True}
CASES = {
    **{method: (method, {}) for method in (*METHODS, *OPTIMIZERS)},
    "dmlcbo, batch normalisation": ("dmlcbo", NORMALISED),
    "vpbgd, batch normalisation": ("vpbgd", NORMALISED),
    "adam, batch normalisation": ("adam", NORMALISED),
    "dmlcbo, Crammer-Singer": ("dmlcbo", {"coding": "crammer-singer"}),
}


def all_cases(ranks):
    return {name: trained(ranks, *case) for name, case in CASES.items()}


@functools.cache
def results(size):
    return on_ranks(all_cases, size, seconds=300)


@pytest.mark.parametrize("case", CASES)
def test_two_and_three_ranks_give_the_network_of_one_process(case):
    (one,) = results(1)
    for size in (2, 3):  # four tasks on three ranks: 2, 1, 1
        check_same(one[case], [found[case] for found in results(size)])


PLAN = {"evaluate_every": 2, "validate_count": 10}


def linearised(ranks):
    """The problem's own derivatives, and those that autograd takes of each rank's part of f and g."""
    tasks = episodes().sample(4, torch.Generator().manual_seed(0))
    problem = FewShotProblem(network(normalise=True), SVMHead(3, C=0.5), tasks, ranks=ranks)
    v = torch.linspace(-1, 1, problem.y0.numel(), dtype=torch.float64).reshape(problem.y0.shape)
    made = [make(problem, problem.x0, problem.y0 + 0.1) for make in (type(problem).linearize, AutogradLinearization)]
    found = [[lin.upper_grad_x, lin.lower_cross(v), {"": lin.lower_hvp(v)}, {"": lin.upper_grad_y}] for lin in made]
    return [[part.flatten().tolist() for vector in one for part in vector.values()] for one in found]


def test_derivatives_on_several_ranks_are_those_of_one():
    own, plain = linearised(Ranks())
    for found in on_ranks(linearised, 3):
        for one in found:
            torch.testing.assert_close(flat(one), flat(own), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(flat(plain), flat(own), rtol=1e-10, atol=1e-12)


def continued(ranks, path, method, steps, resume):
    made = learner(ranks, method, normalise=True)
    training = made.fit(episodes(), steps=steps, validate=novel(), checkpoint=path, resume=resume, **PLAN)
    return numbers(made), [(r.step, 0.0, r.loss, r.accuracy, r.validation) for r in training.history]


def begun(ranks, folder):
    return [continued(ranks, f"{folder}/{method}.safetensors", method, 2, False) for method in RESUMED]


def ended(ranks, folder, resume):
    return [continued(ranks, f"{folder}/{method}.safetensors", method, 4, resume) for method in RESUMED]


RESUMED = ["dmlcbo", "adam"]


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_file_goes_on_with_another_number_of_ranks(first, second, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    (undisturbed,) = on_ranks(ended, 1, str(whole), False)
    on_ranks(begun, first, str(parts))
    resumed = on_ranks(ended, second, str(parts), True)
    for index, expected in enumerate(undisturbed):
        check_same(expected, [rank[index] for rank in resumed])
    for method in RESUMED:
        one, two = (Checkpoint(folder / f"{method}.safetensors").load().state.network for folder in (whole, parts))
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, rtol=1e-10, atol=1e-12)


def told(work):
    """The error of this rank, which must be raised on all of them."""
    try:
        work()
    except BilevelError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was wrong"


def mistakes(ranks, folder):
    """What each rank is told when rank 1 does something else; each is one call, in which all ranks meet."""
    odd = int(ranks.rank == 1)

    def fit(made=None, source=None, **settings):
        made = learner(ranks) if made is None else made
        made.fit(episodes() if source is None else source, **{"steps": 2, **settings})

    def begin_with(other):
        fit(MetaLearner(other, SVMHead(3), tasks_per_step=4, ranks=ranks))

    calls = {
        "network": lambda: begin_with(network(seed=odd)),
        "images": lambda: fit(source=episodes(seed=odd)),
        "validation": lambda: fit(validate=episodes(slice(8, 13 + odd))),
        "seed": lambda: fit(learner(ranks, seed=odd)),
        "solver": lambda: fit(learner(ranks, "vpbgd" if odd else "approx")),
        "steps": lambda: fit(steps=2 + odd),
        "argument": lambda: fit(steps=-1 if odd else 2),
        "file": lambda: fit(checkpoint=Path(folder) / f"file-{ranks.rank}.safetensors", resume=True),
        "exists": lambda: fit(checkpoint=Path(folder) / "file-0.safetensors"),
        "few tasks": lambda: fit(learner(ranks, tasks=1)),
        "callback": lambda: fit(callbacks=[lambda record, made: 1 / (1 - odd)]),
        "broken images": lambda: fit(source=Broken(ranks.rank)),
        "other tasks": lambda: fit(source=Broken(ranks.rank, differ=True)),
    }
    return {name: told(call) for name, call in calls.items()}


class Broken:
    """Images that rank 1 cannot read at step 2, or reads wrongly."""

    __slots__ = ("calls", "differ", "rank")  # no contents to compare before the first step
    ways = 3

    def __init__(self, rank, *, differ=False):
        self.calls, self.rank, self.differ = 0, rank, differ

    def sample(self, count, generator):
        self.calls += 1
        if self.rank == 1 and self.calls == 3:  # tasks 0, 1 and 2
            if self.differ:
                generator.manual_seed(1)
            else:
                raise OSError("strokes-1.png: the disk is gone")
        return episodes().sample(count, generator)


SAID = {
    "network": "RankError: network is '.*' on rank 0 and '.*' on rank 1: start from the same network",
    "images": "RankError: episodes is .* on rank 1: give every rank the same images",
    "validation": "RankError: validate is .* on rank 1: give every rank the same images",
    "seed": "RankError: seed is 0 on rank 0 and 1 on rank 1",
    "solver": r"RankError: updates is .Approx\(.*VPBGD\(",
    "steps": "RankError: steps is 2 on rank 0 and 3 on rank 1: make the same calls on every rank",
    "argument": "RankError: rank 1, checking the arguments of fit: steps must be",
    "file": "RankError: step is 2 on rank 0 and 0 on rank 1: start from the same network, or the same file",
    "exists": "RankError: .*rank, opening the checkpoint: .*file-0.safetensors exists and was left as it is",
    "few tasks": "InvalidInputError: tasks_per_step is 1, and there are 2 ranks: draw at least 2 .*, or start at most",
    "callback": "RankError: rank 1, in a callback: division by zero",
    "broken images": "RankError: rank 1, taking step 2: strokes-1.png: the disk is gone",
    "other tasks": "RankError: the draw of the tasks of step 2 is .* must be a function of the generator alone",
}


def test_ranks_that_do_other_things_and_failures_of_one_are_told_on_all(tmp_path):
    MetaLearner(network(), SVMHead(3), solver=METHODS["dmlcbo"](), tasks_per_step=4).fit(
        episodes(), steps=2, checkpoint=tmp_path / "file-0.safetensors"
    )
    found = on_ranks(mistakes, 2, str(tmp_path))
    assert found[0] == found[1]
    for name, said in SAID.items():
        assert re.match(said, found[0][name], re.DOTALL), (name, found[0][name])


def decisions(ranks):
    """What one rank alone wishes, sees or suffers, all of them do."""

    def run(source=None, **settings):
        made = learner(ranks)
        training = made.fit(episodes() if source is None else source, **{"steps": 9, "evaluate_every": 1, **settings})
        return training.status.name, training.step, training.seconds, training.message, numbers(made)

    hours = iter(range(0, 10**7, 3600 * (1 + ranks.rank)))  # another clock on every rank
    pressing = episodes()
    sample, calls = pressing.sample, []

    def pressed(count, generator):
        calls.append(1)
        if ranks.rank == 1 and len(calls) == 3:  # tasks 0, 1 and 2
            signal.raise_signal(signal.SIGINT)
        return sample(count, generator)

    pressing.sample = pressed
    return {
        "callback": run(callbacks=[lambda record, _: ranks.rank == 1 and record.step == 2]),
        "minutes": run(minutes=59, clock=lambda: float(next(hours))),
        "Ctrl-C": run(pressing),
        "not finite": run(Vanishing()),
    }


class Vanishing(Episodes):
    """Some pixels of the last task are not finite from step 3 on: the rank that has it finds out."""

    def __init__(self):
        super().__init__(images()[:8], 3, 1, 2, dtype=torch.float64)
        self._calls = 0

    def sample(self, count, generator):
        tasks = super().sample(count, generator)
        self._calls += 1
        if self._calls > 3:
            tasks.query[-1, -1] = torch.nan
        return tasks


def test_ends_are_decided_in_common():
    found = on_ranks(decisions, 2)
    assert found[0] == found[1]
    said = {name: values[:4] for name, values in found[0].items()}
    assert said["callback"][:2] == ["STOPPED", 2]
    assert said["minutes"][:3] == ["TIME", 1, 2 * 7200.0]  # the slowest clock, for the first tasks and for a step
    assert said["Ctrl-C"][:2] == ["INTERRUPTED", 2]
    assert said["not finite"][:2] == ["DIVERGED", 2]
    assert "rank 1, taking step 3: the output of the network has NaN" in said["not finite"][3]
