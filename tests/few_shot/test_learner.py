"""Episodic training: it learns, with every solver; files and resumed runs have the same bits; failures lose nothing."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bilevel
from bilevel.few_shot import Accuracy, Episodes, FewShotProblem, MetaLearner, SVMHead, generated_images
from bilevel.few_shot.evaluation import VALIDATION, evaluate


@functools.cache
def images() -> torch.Tensor:
    return generated_images(24, 8, 16, seed=0)


def episodes(**settings) -> Episodes:
    return Episodes(images()[:16], **{"ways": 3, "shots": 2, "queries": 3, **settings})


def novel() -> Episodes:
    return Episodes(images()[16:], ways=3, shots=2, queries=3)


def network(*, normalise: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 6, 3, padding=1), nn.MaxPool2d(4), nn.ELU()]
    if normalise:
        layers.insert(1, nn.BatchNorm2d(6))
        layers.append(nn.Dropout(0.1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 12))


def learner(*, normalise: bool = False, **settings) -> MetaLearner:
    return MetaLearner(network(normalise=normalise), SVMHead(3), **{"tasks_per_step": 2, **settings})


def adam(parameters):
    return torch.optim.Adam(parameters, lr=3e-3)


SOLVERS = [
    bilevel.DMLCBO(upper_step=0.1),
    bilevel.solvers.VPBGD(upper_step=0.01),
    bilevel.solvers.RMDPCD(steps=3, step_rule="fixed", upper_step=0.01),
    bilevel.Approx(step_rule="fixed", upper_step=0.01),
    bilevel.Implicit(step_rule="fixed", upper_step=0.01),
]


def bits(made: MetaLearner) -> list[torch.Tensor]:
    return [value.clone() for value in made.network.state_dict().values()]


def same(a: MetaLearner, b: MetaLearner) -> bool:
    return all(torch.equal(u, v) for u, v in zip(bits(a), bits(b), strict=True))


def test_training_raises_the_accuracy_on_novel_classes():
    made = learner(tasks_per_step=4)
    before = made.evaluate(novel(), count=100)
    training = made.fit(episodes(), steps=40, evaluate_every=20)
    after = made.evaluate(novel(), count=100)
    assert training.status is bilevel.Status.STEPS
    assert [record.step for record in training.history] == [20, 40]
    assert training.history[1].loss < training.history[0].loss
    assert after.mean - after.interval > before.mean + before.interval


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_every_solver_of_the_paper_trains(solver):
    made = learner(solver=solver)
    before = bits(made)
    training = made.fit(episodes(), steps=4, evaluate_every=2)
    assert training.status.ok, training.message
    assert training.step == 4
    assert math.isfinite(training.history[-1].loss)
    assert not any(torch.equal(u, v) for u, v in zip(before, bits(made), strict=True))


SETTINGS = [{"solver": solver} for solver in SOLVERS] + [
    {"optimizer": adam, "scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)},
    {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)},
    {"normalise": True},
    {"normalise": True, "optimizer": adam},
    {"fixed_tasks": True, "normalise": True},
]


class OneDraw(Episodes):
    """Remembers the first tasks that were drawn."""

    tasks = None

    def sample(self, count, generator):
        drawn = super().sample(count, generator)
        self.tasks = self.tasks or drawn
        return drawn


SINGLE_LOOPS = {"solved": bilevel.DMLCBO(upper_step=0.1), "as published": bilevel.DMLCBO.as_published(0.02, 0.01)}


@pytest.mark.parametrize("solver", SINGLE_LOOPS.values(), ids=SINGLE_LOOPS)
def test_fixed_tasks_are_minimised_in_one_loop(solver):
    """Steps on fixed tasks are those of `minimize` on the problem of these tasks: their dual variables live on."""
    source = OneDraw(images()[:16], ways=3, shots=2, queries=3)
    made = learner(solver=solver, fixed_tasks=True)
    made.fit(source, steps=6)
    problem = FewShotProblem(network(), SVMHead(3), source.tasks)
    x0 = problem.x0
    expected = bilevel.minimize(problem, x0, problem.solve(x0), solver=solver, steps=6, seed=0)
    for name, value in expected.x.items():
        torch.testing.assert_close(dict(made.network.named_parameters())[name].detach(), value)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_steps_are_halved(solver):
    """The steps after step 2 are those of a solver with half the step size that takes over there."""
    halved = learner(solver=solver)
    halved.fit(episodes(), steps=3, halve_every=2)
    whole = learner(solver=solver)
    whole.fit(episodes(), steps=2)
    assert not same(halved, whole)
    fixed = learner(solver=solver)
    fixed.fit(episodes(), steps=3)
    before, half, full = (torch.cat([v.flatten() for v in bits(made)]) for made in (whole, halved, fixed))
    torch.testing.assert_close(half - before, 0.5 * (full - before), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: str(sorted(settings)))
def test_a_resumed_run_has_the_same_bits(settings, tmp_path):
    plan = {"evaluate_every": 2, "validate": novel(), "validate_count": 4}
    whole = learner(**settings)
    expected = whole.fit(episodes(), steps=6, **plan)
    path = tmp_path / "run.safetensors"
    first = learner(**settings)
    first.fit(episodes(), steps=4, checkpoint=path, **plan)
    second = learner(**settings)
    found = second.fit(episodes(), steps=6, checkpoint=path, resume=True, **plan)
    assert same(whole, second)
    for name, value in whole.state.network.items():
        assert torch.equal(value, second.state.network[name])
    stripped = [[(r.step, r.loss, r.accuracy, r.validation) for r in run.history] for run in (expected, found)]
    assert stripped[0] == stripped[1]


class CutShort(Episodes):
    """Ctrl-C, as a second press has it: in the middle of whatever draws tasks, at these calls."""

    def __init__(self, part, calls):
        super().__init__(images()[part], ways=3, shots=2, queries=3)
        self._calls, self._count = set(calls), 0

    def sample(self, count, generator):
        self._count += 1
        if self._count in self._calls:
            raise KeyboardInterrupt
        return super().sample(count, generator)


@pytest.mark.parametrize("settings", [{"normalise": True}, {"normalise": True, "optimizer": adam}], ids=["sgd", "adam"])
def test_a_run_that_is_stopped_again_and_again_has_the_same_bits(settings, tmp_path):
    """Within steps, within records, and by an error of a callback; each time another object goes on from the file."""
    plan = {"steps": 7, "evaluate_every": 2, "validate_count": 12}
    whole, path = learner(**settings), tmp_path / "run.safetensors"
    whole.fit(episodes(), validate=novel(), **plan)
    statuses, failing = [], [lambda record, _: record.step == 4 and 1 / 0]
    for train, validate, callbacks in (([2], [], []), ([3], [2], []), ([], [1], []), ([], [], failing), ([2], [], [])):
        sources = {"episodes": CutShort(slice(0, 16), train), "validate": CutShort(slice(16, 24), validate)}
        try:
            made = learner(**settings)
            statuses.append(made.fit(**sources, checkpoint=path, resume=True, callbacks=callbacks, **plan).status)
        except ZeroDivisionError as error:
            statuses.append(error.__notes__[0].partition(" is in ")[0])
    interrupted = bilevel.Status.INTERRUPTED
    assert statuses == [interrupted, interrupted, interrupted, 'Step 4 of "training"', interrupted]
    made = learner(**settings)
    training = made.fit(episodes(), validate=novel(), checkpoint=path, resume=True, **plan)
    assert same(made, whole)
    assert [replace(r, seconds=0.0) for r in training.history] == [replace(r, seconds=0.0) for r in whole.history]


def test_save_and_load(tmp_path):
    made = learner()
    made.fit(episodes(), steps=2)
    path = made.save(tmp_path / "learner.safetensors")
    other = learner().load(path)
    assert same(made, other)
    assert other.state.step == 2
    for wrong, message in (
        (learner(seed=1), "seed differs from that of its run: 0 then, 1 now"),
        (learner(tasks_per_step=3), "tasks_per_step differs from that of its run: 2 then, 3 now"),
        (learner(optimizer=adam), "updates differs .*DMLCBO.* then, .Adam.* now"),
        (learner(about={"ways": 3}), "ways differs from that of its run: None then, 3 now"),
        (MetaLearner(network(), SVMHead(3, C=1.0), tasks_per_step=2), "head differs"),
        (MetaLearner(nn.Sequential(nn.Flatten(), nn.Linear(256, 4)), SVMHead(3), tasks_per_step=2), "shape differs"),
    ):
        with pytest.raises(bilevel.IncompatibleError, match=message):
            wrong.load(path)


def test_a_checkpoint_is_not_overwritten_and_a_damaged_one_falls_back(tmp_path):
    path = tmp_path / "run.safetensors"
    learner().fit(episodes(), steps=4, evaluate_every=2, checkpoint=path)
    with pytest.raises(bilevel.InvalidInputError, match=r"exists and was left as it is: MetaLearner.fit"):
        learner().fit(episodes(), steps=4, checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    made = learner()
    with pytest.warns(bilevel.errors.CheckpointWarning, match="The one before it is used"):
        training = made.fit(episodes(), steps=5, evaluate_every=5, checkpoint=path, resume=True)
    assert training.step == 5


def test_the_network_in_the_end_is_that_of_the_best_record():
    made = learner(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=3.0))
    training = made.fit(episodes(), steps=5, evaluate_every=1, validate=novel(), validate_count=20)
    best = max(record.validation for record in training.history)
    assert training.best is not None
    assert training.best.mean == best
    found = evaluate(made.network, made.head, novel(), count=20, seed=made.seed, stream=VALIDATION)
    assert found == training.best
    assert training.history[-1].validation != best  # or it could be the last one, which is nothing to restore


def test_a_file_of_another_training_is_replaced_at_the_first_checkpoint_and_not_before(tmp_path):
    path = tmp_path / "run.safetensors"
    learner().fit(episodes(), steps=4, evaluate_every=2, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(bilevel.InvalidInputError, match="minutes must be"):
        learner().fit(episodes(), minutes=-1, checkpoint=path, overwrite=True)
    assert path.read_bytes() == before
    learner(seed=1).fit(episodes(), steps=1, checkpoint=path, overwrite=True)
    assert learner(seed=1).load(path).state.step == 1
    assert learner(seed=1).load(path.with_name("run.previous.safetensors")).state.step == 0


class Drawn(Episodes):
    """Keeps the tasks that were drawn."""

    def __init__(self) -> None:
        super().__init__(images()[:16], ways=3, shots=2, queries=3)
        self.tasks = []

    def sample(self, count, generator):
        self.tasks.append(super().sample(count, generator))
        return self.tasks[-1]


def test_each_step_has_tasks_of_its_own():
    sources = [Drawn(), Drawn()]
    for source in sources:
        learner().fit(source, steps=2)
    first, again = ([tasks.support for tasks in source.tasks] for source in sources)
    assert len(first) == 3  # those of the first hypergradient, and of two steps
    assert not torch.equal(first[1], first[2])
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_one_step_goes_down_the_gradient_through_the_head():
    """x - step * gradient, the gradient by autograd through `SVMHead` on the first tasks that are drawn."""
    for settings in (
        {"solver": bilevel.Implicit(step_rule="fixed", upper_step=0.01)},
        {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01)},
    ):
        made, source, plain = learner(**settings), Drawn(), network()
        made.fit(source, steps=1)
        tasks = source.tasks[0]
        support, query = (
            plain(part.flatten(0, 1)).unflatten(0, part.shape[:2]) for part in (tasks.support, tasks.query)
        )
        scores = SVMHead(3)(support, tasks.support_labels, query)
        nn.functional.cross_entropy(scores.flatten(0, 1), tasks.query_labels.flatten()).backward()
        for found, start in zip(made.network.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found, start - 0.01 * start.grad, rtol=1e-4, atol=1e-6)


def test_parts_that_are_frozen_stay_so():
    made = learner(normalise=True)
    made.network.train()
    made.network[1].eval()
    before = made.network[1].running_mean.clone()
    made.fit(episodes(), steps=2)
    made.evaluate(novel(), count=2)
    assert [part.training for part in made.network] == [True, False, True, True, True, True, True]
    assert torch.equal(made.network[1].running_mean, before)


def test_a_loss_that_is_not_finite_ends_the_training_with_the_last_good_network(tmp_path):
    for settings in ({}, {"optimizer": adam}):
        made = learner(**settings)
        made.fit(episodes(), steps=2)
        good = bits(made)
        source = episodes()
        source.images = source.images.float().fill_(torch.nan)
        training = made.fit(source, steps=5, checkpoint=tmp_path / f"{len(settings)}.safetensors")
        assert training.status is bilevel.Status.DIVERGED
        assert training.step == 2
        assert "the network is that of step 2" in training.message
        assert all(torch.equal(u, v) for u, v in zip(good, bits(made), strict=True))


def test_interrupting_completes_the_step(tmp_path):
    import signal

    path = tmp_path / "run.safetensors"
    source = episodes()
    sample, calls = source.sample, []

    def pressed(count, generator):
        calls.append(1)
        if len(calls) == 4:  # tasks 0, 1, 2 and 3: within step 3
            signal.raise_signal(signal.SIGINT)
        return sample(count, generator)

    source.sample = pressed
    training = learner().fit(source, steps=9, checkpoint=path)
    assert (training.status, training.step) == (bilevel.Status.INTERRUPTED, 3)
    made, whole = learner(), learner()
    made.fit(episodes(), steps=5, checkpoint=path, resume=True)
    whole.fit(episodes(), steps=5)
    assert same(made, whole)


def test_callbacks_end_the_training_and_minutes_do():
    seen = []
    training = learner().fit(
        episodes(),
        steps=9,
        evaluate_every=2,
        callbacks=[lambda record, _: seen.append(record.step) or record.step >= 4],
    )
    assert (training.status, seen) == (bilevel.Status.STOPPED, [2, 4])
    training = learner().fit(episodes(), minutes=1e-9)
    assert training.step == 1


def test_minutes_are_those_of_the_clock():
    """A clock that runs an hour per look: 59 minutes are over after the first hypergradient and one step."""
    made, hours = learner(), iter(range(0, 3600 * 100, 3600))
    for _ in range(2):  # the same call again ends at once
        training = made.fit(episodes(), minutes=59, clock=lambda: float(next(hours)))
        assert (training.status, training.step, training.seconds) == (bilevel.Status.TIME, 1, 7200.0)


def test_tasks_to_train_on_may_have_more_ways_than_those_to_be_judged_by():
    made = MetaLearner(network(), SVMHead(6, C=2.0, scale=3.0), tasks_per_step=1)
    training = made.fit(episodes(ways=6), steps=2, validate=novel(), validate_count=5, evaluate_every=1)
    expected = evaluate(made.network, SVMHead(3, C=2.0, scale=3.0), novel(), count=7)
    assert training.best is not None
    assert made.evaluate(novel(), count=7) == expected


def test_running_statistics_follow_and_modes_are_restored():
    made = learner(normalise=True)
    made.network.eval()
    before = made.network[1].running_mean.clone()
    made.fit(episodes(), steps=2)
    assert not made.network.training
    assert int(made.network[1].num_batches_tracked) == 2
    assert not torch.equal(made.network[1].running_mean, before)


def test_evaluation_is_a_function_of_the_seed():
    made = learner()
    assert made.evaluate(novel(), count=10) == made.evaluate(novel(), count=10)
    assert made.evaluate(novel(), count=10, seed=1) != made.evaluate(novel(), count=10)


def test_the_interval_covers():
    values = (torch.rand(4000, 50, generator=torch.Generator().manual_seed(0)) < 0.8).double()
    found = [Accuracy.from_tasks(row) for row in values[:400]]
    covered = sum(abs(one.mean - 0.8) <= one.interval for one in found)
    assert 365 <= covered <= 395  # 95 % of 400 is 380, three standard deviations are 13


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: learner().fit(episodes()), r"set the length of training: fit\(episodes, steps=...\)"),
        (
            lambda: learner().fit(episodes(ways=4), steps=1),
            r"has 4-way tasks, but the head is 3-way.*SVMHead\(ways=4\)",
        ),
        (lambda: learner().fit(None, steps=1), "episodes must be Episodes"),
        (lambda: learner(solver=bilevel.DMLCBO()), r"DMLCBO\(upper_step='auto'\) compares values of f"),
        (lambda: learner(solver=bilevel.Approx()), r"Approx\(step_rule='adaptive'\) compares values of f"),
        (lambda: learner(solver=bilevel.DMLCBO), "solver must be an object such as"),
        (lambda: learner(solver=bilevel.solvers.AiPOD()).fit(episodes(), steps=1), "AiPOD cannot use set"),
        (lambda: learner(optimizer=0.1), "optimizer must be a function of the parameters"),
        (lambda: learner(scheduler=lambda optimizer: None), "scheduler goes with optimizer"),
        (
            lambda: learner().fit(episodes(), steps=1, halve_every=0),
            "halve_every must be an integer of at least 1, got 0",
        ),
        (lambda: learner(fixed_tasks=True, optimizer=adam), "fixed_tasks goes with solver"),
        (lambda: learner(optimizer=adam).fit(episodes(), steps=1, halve_every=2), "halve_every needs a solver"),
        (
            lambda: learner(solver=bilevel.DMLCBO(), fixed_tasks=True).fit(episodes(), steps=1, halve_every=2),
            "a number as upper_step",
        ),
        (lambda: learner(optimizer=torch.optim.LBFGS), "LBFGS looks at losses by itself"),
        (lambda: learner().fit(episodes(dtype=torch.float64), steps=1), r"float64 and the network is torch.float32"),
        (lambda: learner().fit(episodes(), steps=1, validate_count=0), "validate_count must be"),
        (lambda: learner(tasks_per_step=0), "tasks_per_step must be an integer of at least 1"),
        (lambda: MetaLearner(None, SVMHead(3)), "network must be a torch.nn.Module"),
        (lambda: MetaLearner(network(), network()), "head must be an SVMHead"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(bilevel.BilevelError, match=message):
        call()
