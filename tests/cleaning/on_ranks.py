"""Small tables with wrong labels, and `bilevel clean` on them in one process, in several, and by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def write_tables(folder: Path, rows: int = 300, files: int = 3) -> None:
    """train/part-*.parquet with numbers, texts and a constant column, a third of its labels wrong; trusted.csv."""
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(rows + 60, 4)).round(4) * [1.0, 100.0, 1e-3, 1.0] + [0.0, 1e6, 0.0, 3.0]
    town = generator.choice(["Ulm", "Graz"], rows + 60)
    score = numbers[:, 0] + (numbers[:, 1] - 1e6) / 100 + (town == "Ulm")
    labels = np.select([score > 1.0, score > -0.5], ["high", "middle"], "low")
    frame = pd.DataFrame(numbers, columns=list("abcd")).assign(constant=7.0, town=town, species=labels)
    frame["name"] = [f"row {i}" for i in range(len(frame))]
    frame.loc[60 : 60 + rows // 2, "d"] = 3.0  # constant in the first half: on the first of two ranks
    frame[:60].sample(frac=1, axis=1, random_state=1).to_csv(
        folder / "trusted.csv", index=False
    )  # columns in any order
    wrong = generator.random(len(frame)) < 0.3
    frame.loc[wrong, "species"] = generator.choice(["low", "middle", "high"], int(wrong.sum()))
    train = frame[60:].sort_values("town", kind="stable")  # the first rank has only Graz
    (folder / "train").mkdir()
    for i, part in enumerate(np.array_split(np.arange(rows), files)):
        train.iloc[part].to_parquet(folder / "train" / f"part-{i}.parquet", index=False)
    train.to_parquet(folder / "train.parquet", index=False)


def arguments(table: str, *more: str) -> list[str]:
    return ["clean", table, "--label", "species", "--trusted", "trusted.csv", "--ignore", "name", "--seed", "4", *more]


def start(folder: Path, words: list[str], environment: dict[str, Any] | None = None) -> subprocess.Popen[str]:
    told = {name: str(value) for name, value in (environment or {}).items()}
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    return subprocess.Popen(
        [sys.executable, "-m", *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**kept, "OMP_NUM_THREADS": "1", **told},
    )  # fmt: skip


def rank_of(rank: int, size: int, port: int) -> dict[str, Any]:
    """What torchrun tells a process."""
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def torchrun(folder: Path, size: int, *words: str, restarts: int = 3) -> subprocess.Popen[str]:
    told = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    settings = ["--nnodes", "1", "--nproc-per-node", str(size), "--max-restarts", str(restarts), *told]
    return start(folder, ["torch.distributed.run", *settings, "-m", "bilevel", *words])


def finished(process: subprocess.Popen[str], seconds: float = 300.0) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        raise AssertionError(f"no end after {seconds} s: {out}{errors}") from None
    return process.returncode, out, errors
