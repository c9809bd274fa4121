"""The demo: what it prints, and that learned weights beat both ways of training without them."""

from __future__ import annotations

import os

import pytest
import torch

from bilevel import cli, demo


def test_the_command_shows_the_three_models(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["demo", "--steps", "3", "--seed", "1"]) == 0
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split())
    for part in (
        "trained on", "test accuracy", "wrong labels found", "right labels blamed", "noisy rows", "trusted rows only",
        "learned weights", "of 300", "of 700", "points of test accuracy compared with",
    ):  # fmt: skip
        assert part in shown
    assert "step 3/3" in captured.err
    assert os.listdir(tmp_path) == []


def test_the_data_are_what_the_demo_says():
    data = demo.load_digits(7)
    assert len(data.noisy.labels) == 1000
    assert len(data.test.labels) == 747
    assert torch.bincount(data.trusted.labels).tolist() == [5] * 10
    assert int(data.flipped.sum()) == 300
    truth = torch.where(data.flipped, (data.noisy.labels - 3) % 10, data.noisy.labels)
    # 1,797 different images, each in one place: no test row is seen in training.
    rows = torch.cat([data.noisy.images, data.trusted.images, data.test.images])
    assert len(rows) == 1797
    whole = torch.cat([truth, data.trusted.labels, data.test.labels])
    assert sorted(torch.bincount(whole).tolist()) == sorted([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    other = demo.load_digits(8)
    assert not torch.equal(other.noisy.images, data.noisy.images)


def test_the_same_seed_gives_the_same_weights():
    data = demo.load_digits(2)
    data = data._replace(noisy=demo.Images(*(rows[:100] for rows in data.noisy)))
    first, _ = demo.learn_weights(data, steps=10, seed=2, progress=False)
    again, _ = demo.learn_weights(data, steps=10, seed=2, progress=False)
    assert torch.equal(first, again)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_learned_weights_beat_both_baselines(seed):
    result = demo.compare(seed, progress=False)
    noisy, trusted, learned = result.outcomes
    assert learned.accuracy > max(noisy.accuracy, trusted.accuracy) + 0.02
    assert learned.found >= 0.9 * 300
    assert learned.blamed < min(noisy.blamed, trusted.blamed)
    # The weights themselves tell right labels from wrong ones.
    assert result.weights[~result.data.flipped].median() > 0.5
    assert result.weights[result.data.flipped].median() < 0.2
