"""Few-shot training by several processes: the tasks of a step are divided among ranks, which make the same steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..applications.few_shot.evaluation import (
    AT_ONCE,
    Accuracy,
    EpisodeSource,
    accuracies_from,
    check_episodes,
    in_mode,
)
from ..applications.few_shot.head import SVMHead
from ..applications.few_shot.inputs import TaskBatch
from ..applications.few_shot.problem import FewShotProblem
from ..applications.few_shot.team import Team
from ..applications.few_shot.training_state import TrainingState
from ..checks import check_count
from ..errors import Incompatible, InvalidInput
from ..randomness import Noise, Seeds
from .fingerprint import fingerprint
from .ranks import Ranks, RanksFailed
from .shared_tasks import SharedFewShotProblem, raise_together, tried

KINDS = ("replicated", "ddp", "fsdp")
BEGUN = "this training was begun"


class TaskParallel(Team):
    """The team of a `MetaLearner` on several ranks: h(x) = (1/T) sum over ranks of the sum over a rank's tasks.

    Every rank makes the same `MetaLearner(..., team=TaskParallel(ranks))` and the same calls. The tasks of a step are
    those of one process, a function of seed and step; each rank passes the images of its share through the network and
    solves the lower levels of its share. Features, dual variables and derivatives then reach all ranks, which make the
    same step: networks, learning curves and files are those of one process, up to rounding. Rank 0 writes the files,
    and any number of ranks goes on from them.

    Parameters
    ----------
    ranks
        What `connect()` gives.
    network
        "replicated": for solvers and optimisers, one sum of all derivatives per product. For optimisers of torch also
        "ddp" (`DistributedDataParallel`) and "fsdp" (`fully_shard`: each rank keeps a part of the parameters, gradients
        and moments). A learner takes a team of its own.

    References
    ----------
    Ours; the data parallelism of Li et al. (2020) and the sharding of Zhao et al. (2023), with lower levels.

    Examples
    --------
    The same program under `torchrun --nproc-per-node 2` divides the four tasks of a step among two processes:

    >>> from bilevel.applications.few_shot import ConvNet, Episodes, MetaLearner, SVMHead, generated_images
    >>> from bilevel.distributed import connect
    >>> episodes = Episodes(generated_images(20, 8, 16), ways=3, shots=2, queries=4)
    >>> with connect() as ranks:
    ...     _ = torch.manual_seed(0)  # the same first network on every rank
    ...     network = ConvNet(image_size=16, width=4)
    ...     learner = MetaLearner(network, SVMHead(ways=3), tasks_per_step=4, team=TaskParallel(ranks))
    ...     learner.fit(episodes, steps=2).status.name
    'STEPS'
    """

    def __init__(self, ranks: Ranks, network: Literal["replicated", "ddp", "fsdp"] = "replicated") -> None:
        if network not in KINDS:
            raise InvalidInput(f"network must be one of {', '.join(map(repr, KINDS))}, got {network!r}")
        self.ranks, self.kind, self._module = ranks, network, None
        self.writes = ranks.rank == 0

    def join(self, network: nn.Module, *, solver: bool) -> None:
        if self.kind == "replicated" or self.ranks.size == 1:
            return
        if solver:
            raise Incompatible(
                f"network={self.kind!r} goes with an optimiser of torch: a solver of the library looks at x other than "
                "the network's own parameters; use network='replicated', or MetaLearner(..., optimizer=...)"
            )
        if self._module is not None:
            raise InvalidInput("this team has a network already: make a TaskParallel for each learner")
        self._agree_on_networks(network)
        parallel = self._parallel()
        self._module = (parallel.data_parallel if self.kind == "ddp" else parallel.sharded)(network, self.ranks)

    def begin(self, learner: Any, sources: dict[str, EpisodeSource], plan: dict[str, Any]) -> None:
        """Refuse ranks that would not make the same steps."""
        tasks, size = learner.tasks_per_step, self.ranks.size
        self.ranks.agree(
            {**learner.state.settings, **plan, "network='...'": self.kind}, "make the same calls on every rank"
        )
        if tasks < size:
            raise InvalidInput(
                f"tasks_per_step is {tasks}, and there are {size} ranks: draw at least {size} tasks per step, or start "
                f"at most {tasks} of them"
            )
        with self.ranks.together("drawing tasks"):
            data = {name: _data(source, learner.seed) for name, source in sources.items()}
        self.ranks.agree(data, "give every rank the same images, in the same order")
        self.check(learner.snapshot())

    def check(self, state: TrainingState) -> None:
        """Nothing keeps apart what rounding or a file of another content has made different, so look."""
        if self._sharded:  # nobody has all of it: there is nothing to compare
            return
        place = {"step": state.step, "network": fingerprint([state.parameters, state.buffers])}
        self.ranks.agree({**place, "state": fingerprint(state)}, "start from the same network, or the same file")

    def draw(self, sample: Callable[[], TaskBatch], step: int) -> TaskBatch:
        """All tasks on every rank; those of another rank are told by their labels and first images."""
        tasks, failure = tried(sample)
        code = 0 if tasks is None else _code(tasks)
        told = torch.tensor([failure is not None, code, code * code], device=self.ranks.device)
        failures, total, squares = self.ranks.all_sum(told).tolist()
        raise_together(self.ranks, f"drawing the tasks of step {step}", failure, failures)
        if self.ranks.size * squares != total * total:  # Cauchy-Schwarz: equal if and only if all codes are
            raise RanksFailed(
                f"the tasks of step {step} differ between ranks: sample(count, generator) must be a function of the "
                "generator alone, with the same images on every rank"
            )
        assert tasks is not None
        return tasks

    def problem(self, network: nn.Module, head: SVMHead, tasks: TaskBatch, seed: int) -> FewShotProblem:
        if self._module is None:
            return SharedFewShotProblem(network, head, tasks, seed=seed, ranks=self.ranks)
        make = self._parallel().ParallelNetworkProblem
        return make(network, head, tasks, seed=seed, ranks=self.ranks, module=self._module)

    def evaluate(self, network: nn.Module, head: SVMHead, episodes: EpisodeSource, **settings: Any) -> Accuracy:
        """Batches of tasks in turn; every rank makes as many passes, in which a sharded network meets."""
        count = settings["count"]
        with self.ranks.together("evaluating"):
            check_count("count", count)
            check_episodes("episodes", episodes, head.ways)
            values = torch.zeros(count, dtype=torch.float64, device=self.ranks.device)
            with in_mode(network, training=False):
                for first in range(0, count, AT_ONCE * self.ranks.size):
                    start = first + AT_ONCE * self.ranks.rank
                    found = accuracies_from(start if start < count else 0, network, head, episodes, **settings)
                    if start < count:
                        values[start : start + len(found)] = found.to(values)
        return Accuracy.of(self.ranks.all_sum(values))

    def after_step(self, seconds: float, interrupted: bool) -> tuple[float, bool]:
        """The clock is that of rank 0, and Ctrl-C on any rank is for all."""
        seconds, pressed = self.ranks.total(seconds if self.ranks.rank == 0 else 0.0, float(interrupted))
        return seconds, pressed > 0

    def decide(self, wish: Callable[[], bool]) -> bool:
        with self.ranks.together("in a callback"):
            mine = wish()
        return self.ranks.total(float(mine))[0] > 0

    def together(self, doing: str) -> AbstractContextManager[None]:
        return self.ranks.together(doing)

    def whole(self, state: TrainingState) -> TrainingState:
        return self._parallel().whole(state) if self._sharded else state

    def parts(self, state: TrainingState, network: nn.Module) -> TrainingState:
        return self._parallel().parts(state, network) if self._sharded else state

    @property
    def _sharded(self) -> bool:
        return self.kind == "fsdp" and self._module is not None

    def _parallel(self) -> Any:
        """DDP and FSDP take a second to import, and only some ask for them."""
        from . import network_parallel

        return network_parallel

    def _agree_on_networks(self, network: nn.Module) -> None:
        held = {"parameters": list(network.parameters()), "buffers": list(network.buffers())}
        self.ranks.agree({"network": fingerprint(held)}, "start from the same network: seed before you make it")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ranks!r}, network={self.kind!r})"


def _code(tasks: TaskBatch) -> int:
    """24 bits, of which sums of squares are exact."""
    looked_at = [tasks.support_labels, tasks.query_labels, tasks.support[:, 0]]
    return int(fingerprint(looked_at)[:6], 16)


def _data(source: EpisodeSource, seed: int) -> str:
    """The images and settings of a source, and tasks that it draws: no step draws from step -1."""
    tasks: Any = source.sample(1, Noise(Seeds.of(seed), -1).generator("data"))
    drawn = [tasks.support, tasks.support_labels, tasks.query, tasks.query_labels]
    return fingerprint([vars(source) if hasattr(source, "__dict__") else None, drawn])


def goes_on(path: Path, ranks: Ranks, *, resume: bool) -> bool:
    """Whether training goes on from the file at `path`: where it is asked for, and where `torchrun` has started the
    processes anew and those that ended had written it, or a newer one than there was when they began.
    """
    there = f"{path} as of {path.stat().st_mtime_ns if path.exists() else 'never'} is not of this training"
    anew = ranks.remembers(BEGUN)
    written = anew and not ranks.remembers(there)
    if not anew and not resume:
        ranks.remember(there)
    ranks.remember(BEGUN)
    return ranks.gather(resume or written)[0]
