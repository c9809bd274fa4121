"""`bilevel clean` killed at random moments, as a process of its own: --resume ends with the same bits."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.reliability.forks import Command

from bilevel import cli
from bilevel.cleaning import training  # noqa: F401  (files hold its classes)
from bilevel.run.checkpoint import RunDocument, previous_of

KILLS = 40
pytestmark = pytest.mark.reliability


def write_tables(folder: Path) -> None:
    """Three classes of 2,500 rows, a third of whose labels are wrong, and 150 rows that are trusted."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(2650, 12)).round(4)
    labels = (features @ generator.normal(size=(12, 3))).argmax(1)
    frame = pd.DataFrame(features, columns=[f"c{i}" for i in range(12)]).assign(label=labels)
    frame[:150].to_csv(folder / "trusted.csv", index=False)
    wrong = np.flatnonzero(generator.random(2650) < 1 / 3)
    frame.loc[wrong, "label"] = generator.integers(0, 3, len(wrong))
    frame[150:].to_csv(folder / "train.csv", index=False)


def clean(folder: Path, *arguments: str) -> Command:
    command = ["clean", "train.csv", "--label", "label", "--trusted", "trusted.csv", "--seed", "4"]
    return Command(folder, *command, *arguments)


@pytest.mark.parametrize("noise", ["auto", "rows"])
def test_killed_cleaning_ends_with_the_same_bits(tmp_path, noise, record_property, monkeypatch):
    """Half of the kills hit all noise models in turn, half the weights of all rows."""
    record_property("figure", f"bilevel clean --noise {noise} killed {KILLS // 2} times: the same bits")
    write_tables(tmp_path)
    settings = ["--noise", noise, "--steps", "20"]
    monkeypatch.chdir(tmp_path)
    known = ["--label", "label", "--trusted", "trusted.csv"]
    assert (
        cli.main(["clean", "train.csv", *known, *settings, "--out", "first.csv"]) == 0
    )  # imports what the others need
    whole = clean(tmp_path, *settings, "--out", "whole.csv", "--checkpoint", "whole.safetensors")
    began = whole.wait_for(tmp_path / "whole.safetensors")
    whole.finish()
    lasted = (tmp_path / "whole.safetensors").stat().st_mtime - began
    moments, stages = random.Random(f"killed {noise}"), []
    for i in range(KILLS // 2):
        path, out = tmp_path / f"{i}.safetensors", f"{i}.csv"
        killed = clean(tmp_path, *settings, "--out", out, "--checkpoint", path.name)
        killed.wait_for(path)
        time.sleep(moments.random() * lasted)
        killed.kill()
        stages.append(RunDocument.load(path).place)
        if (tmp_path / out).exists():  # killed on its way out
            assert "training" in RunDocument.load(path).finished
            assert (tmp_path / out).read_bytes() == (tmp_path / "whole.csv").read_bytes()
            (tmp_path / out).unlink()
        clean(tmp_path, *settings, "--out", out, "--resume", path.name).finish()
        assert (tmp_path / out).read_bytes() == (tmp_path / "whole.csv").read_bytes(), stages[-1]
        assert "training" in RunDocument.load(path).finished
    assert len(set(stages)) >= 3, stages  # the kills came at different moments
    expected = {f"{i}{end}" for i in range(KILLS // 2) for end in (".csv", ".safetensors", ".previous.safetensors")}
    made = {
        file.name for file in tmp_path.iterdir() if not file.name.startswith(("first", "whole", "train", "trusted"))
    }
    assert made == expected
    assert previous_of(tmp_path / "0.safetensors").exists()
