"""Where the training of a `MetaLearner` stands, and that on disk: one safetensors file, nothing pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import InvalidInput
from ...files import load_document, save_document
from ...solvers import State
from ...storage import TensorStore, decode, decode_state, encode, encode_state

FORMAT, VERSION = "bilevel.MetaLearner", 1


@dataclass(frozen=True)
class TrainingRecord:
    """One line of the learning curve.

    Parameters
    ----------
    step, seconds
        How many steps were taken, and how long they took, evaluations not included.
    loss, accuracy
        On the queries of the tasks of the latest steps, before the network has learned from them; the mean since the
        record before.
    validation, interval
        The mean accuracy on validation tasks and half the width of its 95 % interval; None without validation.

    Examples
    --------
    >>> TrainingRecord(step=100, seconds=12.5, loss=0.7, accuracy=0.75).validation is None
    True
    """

    step: int
    seconds: float
    loss: float
    accuracy: float
    validation: float | None = None
    interval: float | None = None


@dataclass
class TrainingState:
    """All that a training run needs to go on with the same bits.

    Parameters
    ----------
    step, seconds
        As in `TrainingRecord`.
    parameters, buffers
        Of the network, by name.
    solver_state
        The state of the solver; None with an optimiser or before the first step.
    optimizer, scheduler
        Their `state_dict()`, or None.
    history
        The learning curve.
    recent
        The sums of loss and accuracy and the number of steps since the last record.
    best
        The validation accuracy, parameters and buffers of the best record, or None.
    settings
        What the run depends on, as texts and numbers: a file with others is refused.
    """

    step: int = 0
    seconds: float = 0.0
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    solver_state: State | None = None
    optimizer: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    history: list[TrainingRecord] = field(default_factory=list)
    recent: tuple[float, float, int] = (0.0, 0.0, 0)
    best: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


PLAIN = ("step", "seconds", "parameters", "buffers", "optimizer", "scheduler", "recent", "best", "settings")


def save_state(
    state: TrainingState, path: str | Path, *, overwrite: bool = False, previous: Path | None = None
) -> Path:
    """Write the state, complete or not at all; `previous` keeps the file that is replaced."""
    tensors = TensorStore()
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for name in PLAIN:
        document[name] = encode(name, _with_text_keys(getattr(state, name)), tensors)
    document["history"] = [encode("history", asdict(record), tensors) for record in state.history]
    document["solver_state"] = encode_state(state.solver_state, tensors)
    too_long = f"the history of {len(state.history)} records is too long for one file: raise evaluate_every"
    return save_document(
        Path(path), document, tensors.stored, too_long=too_long, overwrite=overwrite, previous=previous
    )


def load_state(path: str | Path) -> TrainingState:
    """Read what `save_state` wrote; every byte is checked before anything is believed."""
    return load_document(Path(path), _decoded, format=FORMAT, version=VERSION, what="a meta-learner")


def _decoded(document: dict[str, Any], stored: dict[str, Tensor]) -> TrainingState:
    values = {name: _with_number_keys(decode(document[name], stored)) for name in PLAIN}
    if type(values["step"]) is not int or not isinstance(values["parameters"], dict):
        raise InvalidInput("there is no step number, or there are no parameters")
    names = {part.name for part in fields(TrainingRecord)}
    rows = [decode(row, stored) for row in document["history"]]
    if any(set(row) != names for row in rows):
        raise InvalidInput(f"a record of the history has other fields than {sorted(names)}")
    values["recent"] = tuple(values["recent"])
    history = [TrainingRecord(**row) for row in rows]
    return TrainingState(**values, history=history, solver_state=decode_state(document["solver_state"], stored))


NUMBER_KEYS = "keys are numbers"


def _with_text_keys(value: Any) -> Any:
    """Optimisers number their parameters; the keys of a file are texts."""
    if isinstance(value, Mapping):
        if value and all(type(key) is int for key in value):
            return {NUMBER_KEYS: [[key, _with_text_keys(entry)] for key, entry in value.items()]}
        return {key: _with_text_keys(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_text_keys(entry) for entry in value)
    return value


def _with_number_keys(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {NUMBER_KEYS}:
            return {key: _with_number_keys(entry) for key, entry in value[NUMBER_KEYS]}
        return {key: _with_number_keys(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_number_keys(entry) for entry in value)
    return value
