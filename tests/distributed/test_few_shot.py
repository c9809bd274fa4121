"""Few-shot training on several ranks is that of one process: the same network, learning curve, files and decisions."""

from __future__ import annotations

import functools
import re
import signal
import warnings
from pathlib import Path

import pytest
import torch
from tests.distributed.ranks import on_ranks
from torch import nn

import bilevel
from bilevel.applications.few_shot import Episodes, MetaLearner, SVMHead, generated_images
from bilevel.applications.few_shot.experiment import SOLVERS
from bilevel.applications.few_shot.training_state import load_state
from bilevel.distributed import TaskParallel
from bilevel.errors import BilevelError

pytestmark = pytest.mark.slow  # each starts several processes

METHODS = {
    **{name: make for name, make in SOLVERS.items() if name != "adam"},
    "coordinates": lambda: bilevel.RMDPCD(steps=2, step_rule="fixed", upper_step=0.01, inner="coordinate"),
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


def learner(ranks, method="dmlcbo", kind="replicated", *, normalise=False, tasks=4, seed=0, coding="centred"):
    how = {"optimizer": OPTIMIZERS[method]} if method in OPTIMIZERS else {"solver": METHODS[method]()}
    head = SVMHead(3, coding=coding)
    team = TaskParallel(ranks, network=kind)
    return MetaLearner(network(normalise=normalise), head, tasks_per_step=tasks, seed=seed, team=team, **how)


def numbers(made):
    """The network's parameters and buffers of the latest step, rounded to nothing."""
    state = made.snapshot()
    return [value.double().flatten().tolist() for value in (*state.parameters.values(), *state.buffers.values())]


def trained(ranks, method, kind="replicated", settings=None, steps=4):
    made = learner(ranks, method, kind, **(settings or {}))
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
    **{method: (method, "replicated", {}) for method in (*METHODS, *OPTIMIZERS)},
    "dmlcbo, batch normalisation": ("dmlcbo", "replicated", NORMALISED),
    "vpbgd, batch normalisation": ("vpbgd", "replicated", NORMALISED),
    "dmlcbo, Crammer-Singer": ("dmlcbo", "replicated", {"coding": "crammer-singer"}),
    "adam, ddp": ("adam", "ddp", {}),
    "sgd, ddp": ("sgd", "ddp", {}),
    "adam, ddp, batch normalisation": ("adam", "ddp", NORMALISED),
    "adam, fsdp": ("adam", "fsdp", {}),
    "sgd, fsdp": ("sgd", "fsdp", {}),
    "adam, fsdp, batch normalisation": ("adam", "fsdp", NORMALISED),
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


def continued(ranks, path, method, kind, steps, resume):
    made = learner(ranks, method, kind, normalise=True)
    training = made.fit(episodes(), steps=steps, validate=novel(), checkpoint=path, resume=resume, **PLAN)
    return numbers(made), [(r.step, 0.0, r.loss, r.accuracy, r.validation) for r in training.history]


def begun(ranks, folder):
    return [continued(ranks, f"{folder}/{m}-{k}.safetensors", m, k, 2, False) for m, k in RESUMED]


def ended(ranks, folder, resume):
    return [continued(ranks, f"{folder}/{m}-{k}.safetensors", m, k, 4, resume) for m, k in RESUMED]


RESUMED = [("dmlcbo", "replicated"), ("adam", "ddp"), ("adam", "fsdp")]


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
    for method, kind in RESUMED:
        names = [load_state(folder / f"{method}-{kind}.safetensors").parameters for folder in (whole, parts)]
        for name, value in names[0].items():
            torch.testing.assert_close(names[1][name], value, rtol=1e-10, atol=1e-12)


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

    def begin_with(other, kind="replicated", **how):
        fit(MetaLearner(other, SVMHead(3), tasks_per_step=4, team=TaskParallel(ranks, kind), **how))

    calls = {
        "network": lambda: begin_with(network(seed=odd)),
        "ddp": lambda: begin_with(network(seed=odd), "ddp", optimizer=OPTIMIZERS["adam"]),
        "images": lambda: fit(source=episodes(seed=odd)),
        "validation": lambda: fit(validate=episodes(slice(8, 13 + odd))),
        "seed": lambda: fit(learner(ranks, seed=odd)),
        "solver": lambda: fit(learner(ranks, "vpbgd" if odd else "approx")),
        "steps": lambda: fit(steps=2 + odd),
        "argument": lambda: fit(steps=-1 if odd else 2),
        "file": lambda: fit(checkpoint=Path(folder) / f"file-{ranks.rank}.safetensors", resume=True),
        "exists": lambda: fit(checkpoint=Path(folder) / "file-0.safetensors"),
        "few tasks": lambda: fit(learner(ranks, tasks=1)),
        "solver under ddp": lambda: learner(ranks, "dmlcbo", "ddp"),
        "kind": lambda: TaskParallel(ranks, network="tensor"),
        "callback": lambda: fit(callbacks=[lambda record, made: 1 / (1 - odd)]),
        "broken images": lambda: fit(source=Broken(odd)),
    }
    return {name: told(call) for name, call in calls.items()}


class Broken(Episodes):
    """Images that one rank cannot read at step 2."""

    def __init__(self, odd):
        super().__init__(images()[:8], 3, 1, 2, dtype=torch.float64)
        self._calls, self._fails = [], lambda: odd and len(self._calls) == 4  # a look, then tasks 0, 1 and 2

    def sample(self, count, generator):
        self._calls.append(object())
        if self._fails():
            raise OSError("strokes-1.png: the disk is gone")
        return super().sample(count, generator)


SAID = {
    "network": "RanksFailed: network is '.*' on rank 0 and '.*' on rank 1: start from the same network",
    "ddp": "RanksFailed: network is .* seed before you make it",
    "images": "RanksFailed: episodes is .* on rank 1: give every rank the same images",
    "validation": "RanksFailed: validate is .* on rank 1: give every rank the same images",
    "seed": "RanksFailed: seed is 0 on rank 0 and 1 on rank 1",
    "solver": r"RanksFailed: updates is .Approx\(.*VPBGD\(",
    "steps": "RanksFailed: steps is 2 on rank 0 and 3 on rank 1: make the same calls on every rank",
    "argument": "RanksFailed: rank 1, looking at the arguments of fit: steps must be",
    "file": "RanksFailed: step is 2 on rank 0 and 0 on rank 1: start from the same network, or the same file",
    "exists": "RanksFailed: rank 0, looking at the arguments of fit: .*file-0.safetensors exists and was left as it is",
    "few tasks": "InvalidInput: tasks_per_step is 1, and there are 2 ranks: draw at least 2 .*, or start at most 1 of",
    "solver under ddp": "Incompatible: network='ddp' goes with an optimiser of torch",
    "kind": "InvalidInput: network must be one of 'replicated', 'ddp', 'fsdp', got 'tensor'",
    "callback": "RanksFailed: rank 1, in a callback: division by zero",
    "broken images": "RanksFailed: rank 1, drawing the tasks of step 2: strokes-1.png: the disk is gone",
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
        if ranks.rank == 1 and len(calls) == 4:  # a look, tasks 0, 1 and 2
            signal.raise_signal(signal.SIGINT)
        return sample(count, generator)

    pressing.sample = pressed
    return {
        "callback": run(callbacks=[lambda record, _: ranks.rank == 1 and record.step == 2]),
        "minutes": run(minutes=59, clock=lambda: float(next(hours))),
        "Ctrl-C": run(pressing),
        "not finite": run(Vanishing(ranks.rank)),
    }


class Vanishing(Episodes):
    """Some pixels of the last task are not finite from step 3 on: the rank that has it finds out."""

    def __init__(self, rank):
        super().__init__(images()[:8], 3, 1, 2, dtype=torch.float64)
        self._calls = []

    def sample(self, count, generator):
        tasks = super().sample(count, generator)
        self._calls.append(object())
        if len(self._calls) > 4:
            tasks.query[-1, -1] = torch.nan
        return tasks


def test_ends_are_decided_in_common():
    found = on_ranks(decisions, 2)
    assert found[0] == found[1]
    said = {name: values[:4] for name, values in found[0].items()}
    assert said["callback"][:2] == ["STOPPED", 2]
    assert said["minutes"][:3] == ["STEPS", 1, 3600.0]
    assert said["Ctrl-C"][:2] == ["INTERRUPTED", 2]
    assert said["not finite"][:2] == ["DIVERGED", 2]
    assert "rank 1, passing images through the network: " in said["not finite"][3]
