"""A small forest: a table whose species is known from two measurements and a colour, with some labels changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bilevel import cli


@dataclass
class Forest:
    """Three tables in one folder, and the commands run there."""

    folder: Path
    frame: pd.DataFrame  # the training table
    wrong: np.ndarray  # which of its labels were changed
    trusted: pd.DataFrame
    test: pd.DataFrame

    def write(self, name: str, content: str | bytes | pd.DataFrame) -> Path:
        path = self.folder / name
        if isinstance(content, pd.DataFrame):
            content.to_csv(path, index=False)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def clean(self, *arguments: str, table: str = "train.csv", label: str = "species") -> int:
        trusted = [] if any(word.startswith("--trusted") for word in arguments) else ["--trusted", "trusted.csv"]
        return cli.main(["clean", table, "--label", label, *trusted, *arguments])

    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder))


TABLES = ["test.csv", "train.csv", "trusted.csv"]


@pytest.fixture
def forest(tmp_path, monkeypatch) -> Forest:
    generator = np.random.default_rng(0)
    size, training, trusted = 420, 240, 80
    frame = pd.DataFrame(
        {
            "height": generator.normal(12, 4, size).round(2),
            "width": generator.normal(0, 1, size).round(3),
            "bark": generator.choice(["smooth", "rough", "scaly"], size),
        }
    )
    score = (frame.height - 12) / 4 + frame.width + 1.5 * (frame.bark == "rough")
    frame["species"] = np.where(score > 1.0, "oak", np.where(score < -0.3, "fir", "ash"))
    noisy = frame[:training].copy()
    wrong = np.zeros(training, dtype=bool)
    wrong[generator.choice(training, 60, replace=False)] = True
    others = {"oak": "fir", "fir": "ash", "ash": "oak"}
    noisy.loc[wrong, "species"] = noisy.species[wrong].map(others)
    rest = frame[training:].reset_index(drop=True)
    made = Forest(tmp_path, noisy, wrong, rest[:trusted], rest[trusted:].reset_index(drop=True))
    made.write("train.csv", made.frame)
    made.write("trusted.csv", made.trusted)
    made.write("test.csv", made.test)
    monkeypatch.chdir(tmp_path)
    return made
