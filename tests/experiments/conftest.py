"""A data folder with a small artificial madelon in the official format, and a table that needs a few seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bilevel.experiments.configuration import Configuration, load_configuration

TINY = """
experiment = "table-2"
title = "tiny"
application = "hyper-cleaning"
[run]
iterations = 20
evaluate_every = 10
seeds = 2
[grid]
[quick]
iterations = 10
evaluate_every = 10
seeds = 1
limit_seconds = 100
grid_limit_seconds = 50
[datasets.madelon]
rows = 60
trusted = 50
scaling = "standard"
[methods.dmlcbo]
solver = "dmlcbo"
settings = { Q = 3, eta = 0.1 }
grid = { upper_step = [1.0, 0.1], lower_step = [1.0] }
quick = { upper_step = [1.0] }
[methods.approx]
solver = "approx"
settings = { upper_step_per_row = true, step_rule = "fixed", inner_steps = 20 }
grid = { upper_step = [1.0, 0.1], lower_step = [0.1] }
"""


FEW_SHOT = """
experiment = "table-3"
title = "tiny"
application = "few-shot"
[run]
iterations = 4
evaluate_every = 2
seeds = 1
[datasets.strokes]
images = "generated"
ways = 3
shots = 2
queries = 2
train_ways = 3
width = 4
novel_tasks = 2
validation_ways = 3
validation_tasks = 2
final_tasks = 2
[methods.dmlcbo]
solver = "dmlcbo"
grid = { upper_step = [0.01] }
"""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 + 600 rows of 500 integers; three columns carry the labels."""
    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    (root / "madelon").mkdir()
    for name, n in (("train", 2000), ("valid", 600)):
        X = rng.integers(0, 1000, (n, 500))
        y = np.where(X[:, :3].sum(1) + rng.normal(0, 200, n) > 1500, 1, -1)
        np.savetxt(root / "madelon" / f"madelon_{name}.data", X, fmt="%d")
        np.savetxt(root / "madelon" / f"madelon_{name}.labels", y, fmt="%d")
    return root


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def tiny(table: Path) -> Configuration:
    return load_configuration(table)
