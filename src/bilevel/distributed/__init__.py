"""One run over several processes: rows, tasks or the lower variable are divided among ranks of torch.distributed."""

from .checkpoints import ShardedCheckpoint
from .cleaning import clean_rows
from .few_shot import TaskParallel
from .loop import minimize
from .lower import ShardedLowerProblem
from .ranks import Ranks, RanksFailed, Unreachable, connect
from .rows import ShardedCleaningProblem
from .sharding import sharded
from .spaces import ShardedSpace
from .sums import sum_over_ranks

__all__ = ["Ranks", "RanksFailed", "Unreachable", "connect"]
__all__ += ["ShardedCleaningProblem", "ShardedSpace", "minimize"]
__all__ += ["TaskParallel"]
__all__ += ["ShardedLowerProblem", "sharded", "sum_over_ranks"]
__all__ += ["ShardedCheckpoint", "clean_rows"]
