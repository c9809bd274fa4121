"""The mean work of evaluations of F."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from .._serializable import serializable


@serializable
@dataclass(frozen=True)
class Effort:
    """How many evaluations there were, and their mean work."""

    evaluations: int = 0
    usual_work: float = 0.0

    def after(self, work: float) -> Self:
        """With one more evaluation."""
        count = self.evaluations + 1
        return replace(self, evaluations=count, usual_work=self.usual_work + (work - self.usual_work) / count)
