"""`bilevel clean` killed at random moments, as a process of its own: --resume ends with the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

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


def clean(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = ["bilevel", "clean", "train.csv", "--label", "label", "--trusted", "trusted.csv", "--seed", "4"]
    return subprocess.Popen(
        [sys.executable, "-m", *command, *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Until training has begun, which the first checkpoint tells."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.001)


@pytest.mark.parametrize("noise", ["auto", "rows"])
def test_killed_cleaning_ends_with_the_same_bits(tmp_path, noise, record_property):
    """Half of the kills hit all noise models in turn, half the weights of all rows."""
    record_property("figure", f"bilevel clean --noise {noise} killed {KILLS // 2} times: the same bits")
    write_tables(tmp_path)
    settings = ["--noise", noise, "--steps", "20"]
    whole = clean(tmp_path, *settings, "--out", "whole.csv", "--checkpoint", "whole.safetensors")
    wait_for(tmp_path / "whole.safetensors", whole)
    began = time.time()
    finish(whole)
    lasted = (tmp_path / "whole.safetensors").stat().st_mtime - began
    moments, stages = random.Random(f"killed {noise}"), []
    for i in range(KILLS // 2):
        path, out = tmp_path / f"{i}.safetensors", f"{i}.csv"
        killed = clean(tmp_path, *settings, "--out", out, "--checkpoint", path.name)
        wait_for(path, killed)
        time.sleep(moments.random() * lasted)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        stages.append(RunDocument.load(path).place)
        if (tmp_path / out).exists():  # killed on its way out
            assert "training" in RunDocument.load(path).finished
            assert (tmp_path / out).read_bytes() == (tmp_path / "whole.csv").read_bytes()
            (tmp_path / out).unlink()
        finish(clean(tmp_path, *settings, "--out", out, "--resume", path.name))
        assert (tmp_path / out).read_bytes() == (tmp_path / "whole.csv").read_bytes(), stages[-1]
        assert "training" in RunDocument.load(path).finished
    assert len(set(stages)) >= 3, stages  # the kills came at different moments
    expected = {f"{i}{end}" for i in range(KILLS // 2) for end in (".csv", ".safetensors", ".previous.safetensors")}
    made = {file.name for file in tmp_path.iterdir() if not file.name.startswith(("whole", "train", "trusted"))}
    assert made == expected
    assert previous_of(tmp_path / "0.safetensors").exists()
