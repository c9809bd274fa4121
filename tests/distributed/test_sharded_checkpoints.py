"""Checkpoints that ranks write together: complete or not at all, for any number of ranks, and of this run only."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from tests.distributed.ranks import on_ranks

from bilevel.checkpoints import CheckpointWarning
from bilevel.distributed import Ranks, RanksFailed, ShardedCheckpoint, ShardedCleaningProblem, clean_rows, minimize
from bilevel.distributed.row_files import Layout, RowPart, load_rows, read_documents, save_rows
from bilevel.errors import BilevelError, Incompatible, InvalidInput
from bilevel.files import Damaged, FileExists, FileMissing

pytestmark = pytest.mark.slow  # each starts several processes

ROWS, COLUMNS, CLASSES = 41, 5, 3


def data():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS + 18, COLUMNS, generator=generator, dtype=torch.float64)
    right = (rows @ torch.randn(COLUMNS, CLASSES, generator=generator, dtype=torch.float64)).argmax(1)
    given = torch.where(torch.arange(len(right)) % 5 == 0, (right + 1) % CLASSES, right)
    return rows[18:], given[18:], rows[:18], right[:18]


def part(ranks):
    """The rows of a rank, unevenly divided, and what every rank has."""
    rows, labels, *trusted = data()
    edges = [ROWS * r * (r + 3) // (ranks.size * (ranks.size + 3)) for r in range(ranks.size + 1)]
    mine = slice(*edges[ranks.rank : ranks.rank + 2])
    return rows[mine], labels[mine], *trusted


def run(ranks, path, *, steps, resume=False, **changed):
    rows, labels, *trusted = part(ranks)
    problem = ShardedCleaningProblem(rows, labels, *trusted, ranks=ranks, radius=2.0)
    place = ShardedCheckpoint(path, rows=len(labels), ranks=ranks, every=2, identity={"data": "these", **changed})
    options = {"resume": place} if resume else {"x0": problem.start()}
    return minimize(problem, steps=steps, evaluate_every=5, checkpoint=place, **options)


def numbers(ranks, solution):
    """Everything, as lists, the weights of all rows in order."""
    x = [value for part in ranks.gather(solution.x.tolist()) for value in part]
    return {"x": x, **{name: entry.tolist() for name, entry in solution.y.items()}}


def whole_and_half(ranks, folder):
    whole = numbers(ranks, run(ranks, f"{folder}/whole-{ranks.size}", steps=12))
    run(ranks, f"{folder}/half-{ranks.size}", steps=7)
    return whole


def went_on(ranks, path, steps):
    return numbers(ranks, run(ranks, path, steps=steps, resume=True))


def largest_difference(a, b):
    return max(float((torch.tensor(a[name]) - torch.tensor(b[name])).abs().max()) for name in a)


def test_a_resumed_run_ends_as_one_that_never_stopped_for_any_number_of_ranks(tmp_path):
    alone = whole_and_half(Ranks(), str(tmp_path))
    two = on_ranks(whole_and_half, 2, str(tmp_path))
    assert two[0] == two[1]
    assert largest_difference(alone, two[0]) < 1e-10
    assert went_on(Ranks(), str(tmp_path / "half-1"), 5) == alone  # the same bits
    assert largest_difference(went_on(Ranks(), str(tmp_path / "half-2"), 5), alone) < 1e-10


@pytest.mark.slow
def test_two_ranks_go_on_with_the_same_bits_and_from_one(tmp_path):
    alone = whole_and_half(Ranks(), str(tmp_path))
    two = on_ranks(whole_and_half, 2, str(tmp_path))[0]
    assert on_ranks(went_on, 2, str(tmp_path / "half-2"), 5)[0] == two
    (tmp_path / "half-2").rename(tmp_path / "gone")
    assert largest_difference(on_ranks(went_on, 3, str(tmp_path / "half-1"), 5)[0], alone) < 1e-10


def test_rows_are_redistributed_and_nothing_is_unpickled(tmp_path, monkeypatch):
    x, scores, y = torch.arange(7.0), torch.arange(21.0).reshape(3, 7), torch.randn(2, 3)
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for path, (first, count) in zip(files, [(0, 4), (4, 1), (5, 2)], strict=True):
        place, mine = Layout(first, count, 7), slice(first, first + count)
        tensors = {"x": RowPart.of(x[mine].clone(), place, 0), "s": RowPart.of(scores[:, mine].clone(), place, 1)}
        save_rows(path, {**tensors, **({"y": y, "number": torch.tensor(3.0)} if first == 0 else {})}, {"step": 1})

    def refuse(*_, **__):
        raise AssertionError("a pickle")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    documents = read_documents(files)
    assert documents[0]["step"] == 1
    for first, count in [(0, 7), (3, 3), (6, 1)]:
        found = load_rows(files, documents, {"x": 0, "s": 1}, Layout(first, count, 7))
        mine = slice(first, first + count)
        assert torch.equal(found["x"], x[mine])
        assert torch.equal(found["s"], scores[:, mine])
        assert torch.equal(found["y"], y)
        assert float(found["number"]) == 3.0
    with pytest.raises(InvalidInput, match="has 7 rows, and here are 8"):
        load_rows(files, documents, {"x": 0, "s": 1}, Layout(0, 8, 8))
    with pytest.raises(Damaged, match="do not make up the whole"):
        load_rows(files[:2], documents[:2], {"x": 0, "s": 1}, Layout(0, 7, 7))


def newest(folder: Path) -> Path:
    return folder / json.loads((folder / "current.json").read_text())[0][0]


def test_a_damaged_file_is_noticed_and_the_checkpoint_before_it_used(tmp_path):
    path = tmp_path / "run"
    whole = run(Ranks(), str(tmp_path / "whole"), steps=12)
    run(Ranks(), str(path), steps=7)
    assert sorted(entry.name for entry in path.iterdir())[-1] == "current.json"
    assert len(list(path.iterdir())) == 3  # the newest, the one before it, and which is which
    file = next(newest(path).iterdir())
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.warns(CheckpointWarning, match="is damaged. The one before it is used"):
        went = run(Ranks(), str(path), steps=None, resume=True)
    assert went.stats["steps"] == 7  # the plan of the run
    assert run(Ranks(), str(path), steps=5, resume=True).x.equal(whole.x)
    for folder in path.glob("0*"):
        for file in folder.iterdir():
            file.write_bytes(b"nothing")
    with pytest.raises(Damaged, match="no checkpoint that is intact"):
        run(Ranks(), str(path), steps=5, resume=True)


def test_a_write_that_was_cut_short_is_not_seen(tmp_path):
    path = tmp_path / "run"
    run(Ranks(), str(path), steps=7)
    before = newest(path).name
    cut = path / "000099"
    cut.mkdir()
    (cut / "rank-00000-of-00001.safetensors").write_bytes(b"half")
    assert newest(path).name == before
    went = run(Ranks(), str(path), steps=5, resume=True)
    assert went.stats["steps"] == 12
    assert not cut.exists()


def test_another_run_is_refused_by_name(tmp_path):
    path = str(tmp_path / "run")
    run(Ranks(), path, steps=4)
    with pytest.raises(FileExists, match="exists and was left as it is"):
        run(Ranks(), path, steps=4)
    with pytest.raises(Incompatible, match="data differs from that of its run: 'these' then, 'others' now"):
        run(Ranks(), path, steps=4, resume=True, data="others")
    with pytest.raises(FileMissing, match="holds no complete checkpoint"):
        run(Ranks(), str(tmp_path / "none"), steps=4, resume=True)


def test_other_rows_labels_and_settings_are_refused_by_minimize_itself(tmp_path):
    rows, labels, *trusted = data()

    def go(rows=rows, labels=labels, resume=True, **settings):
        problem = ShardedCleaningProblem(rows, labels, *trusted, **({"radius": 2.0} | settings))
        place = ShardedCheckpoint(tmp_path / "run", rows=len(labels))
        start = {"resume": place} if resume else {"x0": problem.start(), "checkpoint": place}
        return minimize(problem, steps=2, **start)

    go(resume=False)
    swapped = torch.cat([rows[[1, 0]], rows[2:]])
    cases = {
        "the rows and labels": [{"rows": swapped}, {"labels": (labels + 1) % CLASSES}],
        "the set of the model": [{"radius": 3.0}],
        "the ridges": [{"ridge": 0.1}],
    }
    for name, changed in cases.items():
        for each in changed:
            with pytest.raises(Incompatible, match=f"since {name} differs"):
                go(**each)
    assert go().stats["steps"] == 4


def identity_of(ranks):
    rows, labels, *trusted = part(ranks)
    return ShardedCleaningProblem(rows, labels, *trusted, ranks=ranks).identity


def test_a_problem_is_the_same_for_any_number_of_ranks():
    assert on_ranks(identity_of, 3) == [identity_of(Ranks())] * 3


def test_a_full_disk_is_a_warning_and_leaves_what_was_there(tmp_path, monkeypatch):
    from bilevel.distributed import checkpoints

    path = tmp_path / "run"
    run(Ranks(), str(path), steps=4)
    before = newest(path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_rows", full)
    with pytest.warns(CheckpointWarning, match="could not be written .*No space left on device"):
        solution = run(Ranks(), str(path), steps=4, resume=True)
    assert solution.stats["steps"] == 8
    assert newest(path) == before


def differing(ranks, folder):
    """What each rank says of a checkpoint that cannot be used, and of a model that is not the same everywhere."""
    told = []
    path = f"{folder}/run"
    run(ranks, path, steps=4)
    if ranks.rank == 0:  # all files of the second rank, newest and before
        for file in Path(path).glob("*/rank-00001-*"):
            file.unlink()
    ranks.total(0.0)
    from bilevel.distributed.checkpoints import CheckpointFolder

    attempts = [
        lambda: run(ranks, path, steps=4, resume=True),
        lambda: run(ranks, f"{folder}/other-{ranks.rank}/run", steps=4),
        lambda: CheckpointFolder(Path(path), ranks, 3).write(
            lambda store: {"y": store.add("y", torch.full((2,), float(ranks.rank)))}
        ),
    ]
    for attempt in attempts:
        try:
            attempt()
            told.append("")
        except BilevelError as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def test_every_rank_hears_what_is_wrong(tmp_path):
    (tmp_path / "other-0").mkdir()
    first, second = on_ranks(differing, 2, str(tmp_path))
    assert first[0] == second[0]
    assert "no checkpoint that is intact" in first[0]
    assert "rank-00001-of-00002.safetensors: there is no such file" in first[0]
    assert first[1].startswith("RanksFailed") or first[1] == ""  # only rank 0 makes the folder
    assert first[2] == second[2]
    assert "the tensor 'y' is" in first[2]
    assert "on rank 1: ranks must hold the same model" in first[2]


def cleaned(ranks, folder, *, stop=0, resume=False):
    """The weights of all rows; `stop` ends training by an error after so many steps."""
    seen = []

    def show(moment):
        seen.append(moment)
        if stop and len(seen) == stop:
            raise RanksFailed("stopped by the test")

    rows, labels, *trusted = part(ranks)
    try:
        found = clean_rows(
            rows, labels, *trusted, ranks=ranks, seed=3, steps=6, checkpoint=f"{folder}/clean", resume=resume,
            show=show, identity={"data": "these"},
        )  # fmt: skip
    except RanksFailed as error:
        return [str(error), *error.__notes__], len(seen)
    weights = [value for values in ranks.gather(found.weights.tolist()) for value in values]
    return [weights, found.model["weight"].tolist()], len(seen)


def test_cleaning_goes_on_from_the_last_step(tmp_path):
    (tmp_path / "whole").mkdir()
    (whole, steps) = cleaned(Ranks(), str(tmp_path / "whole"))
    told, _ = cleaned(Ranks(), str(tmp_path), stop=4)
    assert told[0] == "stopped by the test"
    assert '"learning rows, step 4" is in' in told[1]
    went, left = cleaned(Ranks(), str(tmp_path), resume=True)
    assert went == whole
    assert left == steps - 4
    assert cleaned(Ranks(), str(tmp_path), resume=True) == (whole, 0)  # a run that has ended repeats nothing
