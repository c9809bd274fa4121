"""Methods for bilevel problems, one per file."""

from .base import Solver, State
from .dmlcbo import DMLCBO, AdaptivityWarning

__all__ = ["DMLCBO", "AdaptivityWarning", "Solver", "State"]
