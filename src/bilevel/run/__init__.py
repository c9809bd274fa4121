"""The engine of all runs: steps, records, checkpoints, interruption, progress and comparisons."""

from .checkpoint import Checkpoint
from .comparison import Budget, Comparison
from .observers import CSVFile, TensorBoard
from .solution import Record, Solution, Status

__all__ = [
    "Budget",
    "CSVFile",
    "Checkpoint",
    "Comparison",
    "Record",
    "Solution",
    "Status",
    "TensorBoard",
]
