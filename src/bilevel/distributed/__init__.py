"""One run over several processes: rows, tasks or the lower variable are divided among ranks of torch.distributed."""

from .few_shot import TaskParallel
from .loop import minimize
from .ranks import Ranks, RanksFailed, Unreachable, connect, started_by_torchrun
from .rows import ShardedCleaningProblem
from .spaces import ShardedSpace

__all__ = ["Ranks", "RanksFailed", "Unreachable", "connect", "started_by_torchrun"]
__all__ += ["ShardedCleaningProblem", "ShardedSpace", "minimize"]
__all__ += ["TaskParallel"]
