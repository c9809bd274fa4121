"""Checks of settings that several solvers share."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidInput
from .base import check_count, check_positive


def check_positives(**settings: Any) -> None:
    """Each setting is a positive, finite number."""
    for name, value in settings.items():
        check_positive(name, value)


def check_positive_or_auto(**settings: Any) -> None:
    """Each setting is "auto" or a positive, finite number."""
    for name, value in settings.items():
        if value != "auto":
            if isinstance(value, str):
                raise InvalidInput(f'{name} must be a positive number or "auto", got {value!r}')
            check_positive(name, value)


def check_between(low: float, high: float, **settings: Any) -> None:
    """Each setting is a number in [low, high]."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidInput(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")


def check_counts(**settings: Any) -> None:
    """Each setting is an integer of at least 1."""
    for name, value in settings.items():
        check_count(name, value)


def step_or(setting: float | str, automatic: float) -> float:
    """The number behind a step: `automatic` for "auto"."""
    return automatic if isinstance(setting, str) else float(setting)
