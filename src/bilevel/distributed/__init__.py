"""One run over several processes: rows, tasks or the lower variable are divided among ranks of torch.distributed."""

from .ranks import Ranks, RanksFailed, Unreachable, connect, started_by_torchrun
from .sharding import sharded
from .sums import sum_over_ranks

__all__ = ["Ranks", "RanksFailed", "Unreachable", "connect", "sharded", "started_by_torchrun", "sum_over_ranks"]
