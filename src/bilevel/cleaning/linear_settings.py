"""The settings of a linear noise model, from those of a `HyperCleaner`, and facts on which ranks must agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .. import solvers
from .._checks import check_count
from .._fingerprint import fingerprint
from ..errors import InvalidInputError
from ..solvers import Solver
from ..solvers.base import FIXED_SET, needs_of
from .learning import Rows, Settings
from .losses import loss_of, object_of
from .noise import BY_NAME, noise_of
from .options import SOLVERS

LINEAR = ("loss", "radius", "constraint", "ridge", "fit_intercept", "solver", "steps", "batch_size")
"""Settings that only linear noise models have."""


def settings_of(params: Mapping[str, Any], classes: int, seed: int) -> Settings:
    """Check the settings of a cleaner and convert them.

    Parameters
    ----------
    params
        The parameters of `HyperCleaner`.
    """
    solver = solver_of(params["solver"])
    if FIXED_SET in needs_of(solver) and params["radius"] == "auto" and params["constraint"] is None:
        raise InvalidInputError(
            f"solver={params['solver']!r} needs a fixed set: give a radius, such as radius=1.0, not 'auto'"
        )
    noise = params["noise"]
    if noise != "auto" and noise_of(noise, auto=True).name not in BY_NAME:
        raise InvalidInputError(f"noise must be RowWeights(), ClassPairs() or Transition(), got {noise!r}")
    own = {name: params[name] for name in ("noise", "radius", "constraint", "ridge", "batch_size")}
    return Settings(
        classes=classes, loss=loss_of(params["loss"], classes), intercept=params["fit_intercept"], solver=solver,
        steps=None if params["steps"] is None else check_count("steps", params["steps"]), seed=seed, **own,
    )  # fmt: skip


def solver_of(solver: str | Solver) -> Solver | None:
    """The solver, given as an object or by its name; None for "auto"."""
    if isinstance(solver, str) and solver == "auto":
        return None
    if isinstance(solver, str) and solver == "dmlcbo":  # x are logits: they have a unit
        return solvers.DMLCBO(upper_step=0.1)
    if hasattr(solver, "init") and hasattr(solver, "step") and not isinstance(solver, type):
        return solver  # type: ignore[return-value]
    kinds = {name: getattr(solvers, kind) for name, kind in SOLVERS.items()}
    return object_of("solver", solver, kinds, (), auto=True)


def common_facts(settings: Settings, trusted: Rows) -> dict[str, Any]:
    """The facts that must be the same on every rank, so that all ranks compute the same model and decisions."""
    design: Any = trusted.design.rows(torch.arange(len(trusted)))
    if settings.batch_size is not None:
        raise InvalidInputError(
            f"batch_size={settings.batch_size}: every step uses all rows that ranks divide; omit it"
        )
    return {
        **settings.identity,
        "the shape and type of trusted rows": f"{design.shape} {design.dtype}",
        "the content of trusted rows": fingerprint(design.array, trusted.labels),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "the number of threads": torch.get_num_threads(),
        "the processor": torch.backends.cpu.get_cpu_capability(),
    }
