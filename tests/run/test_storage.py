"""Solutions on disk: what is read is what was written, resuming gives the same bits, and nothing else is accepted."""

from __future__ import annotations

import math
import os
import pickle
import resource
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file
from tests.documents import edit, removing, setting

import bilevel
from bilevel import examples
from bilevel.errors import OutputExistsError
from bilevel.run.solution import Record, Solution
from bilevel.solvers.base import State


def vector_problem() -> bilevel.Problem:
    target = torch.tensor([0.5, -0.2, 0.1, 0.9], dtype=torch.float64)
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    return bilevel.Problem(
        upper=lambda x, y: (y - target).square().sum() + 0.01 * x.square().sum(),
        lower=lambda x, y: ((y - x) @ matrix * (y - x)).sum() / 2,
        constraint=bilevel.sets.L1Ball(1.0),
        y0=torch.zeros(4, dtype=torch.float64),
    )


def named_problem() -> bilevel.Problem:
    """x and y are dictionaries, and y["weight"] is stored transposed."""
    rows = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    return bilevel.Problem(
        upper=lambda x, y: (rows @ y["weight"] + y["bias"] - 1).square().mean(),
        lower=lambda x, y: (
            (rows @ y["weight"] + y["bias"] - rows @ x["b"] - x["a"]).square().mean() + 0.1 * y["weight"].square().sum()
        ),
        constraint=bilevel.sets.ProductSet({"weight": bilevel.sets.L1Ball(2.0), "bias": bilevel.sets.FreeSpace()}),
        y0={"weight": torch.zeros(5, 3).T, "bias": torch.zeros(5)},
    )


def named_start() -> dict[str, torch.Tensor]:
    return {"b": torch.full((3, 5), 0.1), "a": torch.zeros(5)}


SOLVERS = {
    "default": bilevel.DMLCBO(),
    "fixed step": bilevel.DMLCBO(upper_step=0.1),
    "random truncation": bilevel.DMLCBO(upper_step=0.1, hypergradient=bilevel.Neumann(terms=5, truncation="random")),
    "two-point": bilevel.DMLCBO(
        upper_step=0.1, hypergradient=bilevel.Neumann(terms=3, smoothing=bilevel.hypergradients.TwoPoint(radius=1e-3))
    ),
    "unrolled": bilevel.DMLCBO(upper_step=0.1, hypergradient=bilevel.Unrolled(steps=3)),
}


def assert_same_bits(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.stride() == b.stride()
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)  # names and their order
        for key in a:
            assert_same_bits(a[key], b[key])
    elif isinstance(a, State):
        for field in fields(a):
            assert_same_bits(getattr(a, field.name), getattr(b, field.name))
    else:
        assert a == b or (a != a and b != b)


def counts(solution: Solution) -> dict[str, float]:
    return {key: value for key, value in solution.stats.items() if key != "seconds"}


@pytest.fixture
def solution() -> Solution:
    return bilevel.minimize(
        vector_problem(),
        torch.zeros(4, dtype=torch.float64),
        steps=20,
        evaluate_every=5,
        seed=3,
        solver=bilevel.DMLCBO(upper_step=0.1),
    )


@pytest.mark.parametrize(
    ("solver", "names"), [*((solver, False) for solver in SOLVERS), ("default", True), ("two-point", True)]
)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(solver, names, tmp_path):
    solver = SOLVERS[solver]
    problem, x0 = (named_problem(), named_start()) if names else (vector_problem(), torch.zeros(4).double())
    whole = bilevel.minimize(problem, x0, solver=solver, steps=110, seed=5)
    # 37 and 110 are on both sides of step 100, where the curvature is estimated again.
    first = bilevel.minimize(problem, x0, solver=solver, steps=37, seed=5)
    loaded = Solution.load(first.save(tmp_path / "run.safetensors"))
    resumed = bilevel.minimize(problem, resume=loaded, solver=solver, steps=110 - 37)
    assert_same_bits(resumed.x, whole.x)
    assert_same_bits(resumed.y, whole.y)
    assert_same_bits(resumed.state, whole.state)
    assert counts(resumed) == counts(whole)
    assert [record.step for record in resumed.history] == [0, 37, 100, 110]


def test_everything_comes_back(solution, tmp_path):
    path = solution.save(tmp_path / "solution.safetensors")
    loaded = Solution.load(path)
    assert loaded.status is solution.status
    assert loaded.history == solution.history
    assert loaded.stats == solution.stats
    for mine, theirs in ((loaded.x, solution.x), (loaded.y, solution.y), (loaded.state, solution.state)):
        assert_same_bits(mine, theirs)
    assert os.listdir(tmp_path) == [path.name]  # no temporary file stays behind


def test_not_finite_numbers_odd_names_and_special_tensors_survive(solution, tmp_path):
    x = {
        "layer.1/weight": torch.tensor([[1.0, -0.0], [math.inf, math.nan]]).T,
        'b"\n\\ \N{GREEK SMALL LETTER ALPHA}': torch.tensor(3.5, dtype=torch.float64),
        "a": torch.zeros(0, 3, dtype=torch.bfloat16),
        "sha256": torch.ones(2, 3, 4).permute(2, 0, 1),
    }
    record = Record(step=1, seconds=0.1, upper=math.inf, lower_residual=-math.inf, stationarity=math.nan)
    solution.document.result = {"x": x, "y": x["a"]}
    solution.document.history, solution.document.seconds = [record], math.nan
    loaded = Solution.load(solution.save(tmp_path / "s"))
    assert list(loaded.x) == list(x)
    for name in x:
        assert loaded.x[name].stride() == x[name].stride()
        assert torch.equal(loaded.x[name].nan_to_num(7.0), x[name].nan_to_num(7.0))
    assert math.copysign(1.0, float(loaded.x["layer.1/weight"][1, 0])) == -1.0
    assert loaded.history[0].upper == math.inf
    assert loaded.history[0].lower_residual == -math.inf
    assert math.isnan(loaded.history[0].stationarity)
    assert math.isnan(loaded.stats["seconds"])
    assert isinstance(loaded.stats["steps"], int)


def test_views_of_one_memory_are_stored(tmp_path, solution):
    base = torch.arange(6.0)
    solution.document.result["x"] = {"head": base[:3], "tail": base[2:], "all": base, "again": base}
    loaded = Solution.load(solution.save(tmp_path / "s"))
    assert loaded.x["tail"].tolist() == [2.0, 3.0, 4.0, 5.0]
    assert loaded.x["again"].tolist() == base.tolist()


def test_an_existing_file_is_refused_and_left_alone(solution, tmp_path):
    path = tmp_path / "s.safetensors"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="s.safetensors exists and was left as it is"):
        solution.save(path)
    with pytest.raises(bilevel.InvalidInputError):
        solution.save(path)
    assert path.read_text() == "precious"
    solution.save(path, overwrite=True)
    assert_same_bits(Solution.load(path).x, solution.x)


def test_a_file_that_appears_meanwhile_is_left_alone(solution, tmp_path, monkeypatch):
    path, save_file = tmp_path / "s", safetensors.torch.save_file

    def overtaken(*arguments: Any, **options: Any) -> None:
        save_file(*arguments, **options)
        path.write_text("another program's")

    monkeypatch.setattr(safetensors.torch, "save_file", overtaken)
    with pytest.raises(OutputExistsError, match="appeared while .*; nothing was written$"):
        solution.save(path)
    assert path.read_text() == "another program's"
    assert os.listdir(tmp_path) == ["s"]


def test_a_write_that_fails_leaves_the_old_file(solution, tmp_path, monkeypatch):
    path = tmp_path / "s"
    path.write_text("old")

    def full(tensors: Any, name: Any, **_: Any) -> None:
        Path(name).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="disk full"):
        solution.save(path, overwrite=True)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["s"]


def to_csv_but(third: Callable[[], None]) -> Callable[..., None]:
    """`DataFrame.to_csv` that does something more when it has written the third file."""
    to_csv, calls = pd.DataFrame.to_csv, iter(range(1, 10))

    def write(*arguments: Any, **options: Any) -> None:
        to_csv(*arguments, **options)
        if next(calls) == 3:
            third()

    return write


def test_several_files_appear_together_or_none_of_them(tmp_path, monkeypatch):
    def full() -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(pd.DataFrame, "to_csv", to_csv_but(full))
        with pytest.raises(OSError, match="disk full"):
            examples.write("penguins", tmp_path)
    assert os.listdir(tmp_path) == []
    examples.write("penguins", tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["checked.csv", "test.csv", "train.csv", "truth.csv"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_named_before_one_that_fails_stay_and_are_told(tmp_path, monkeypatch, overwrite):
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if target.name == "test.csv":
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(pd.DataFrame, "to_csv", to_csv_but(lambda: (tmp_path / "test.csv").write_text("theirs")))
    monkeypatch.setattr(os, "replace", refuse)
    reason = r"cannot be written \(Input/output error\)" if overwrite else "appeared while it was being written.*"
    with pytest.raises(
        bilevel.InvalidInputError, match=f"test.csv {reason}; written before it: .*train.csv, .*checked.csv$"
    ) as caught:
        examples.write("penguins", tmp_path, overwrite=overwrite)
    assert isinstance(caught.value, OutputExistsError) is not overwrite
    assert sorted(os.listdir(tmp_path)) == ["checked.csv", "test.csv", "train.csv"]
    assert (tmp_path / "test.csv").read_text() == "theirs"


def test_others_may_read_what_the_settings_of_the_user_say(solution, tmp_path):
    (tmp_path / "plain").write_text("")
    solution.save(tmp_path / "s")
    assert (tmp_path / "s").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_symbolic_link_stays_one(solution, tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    solution.save(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert_same_bits(Solution.load(tmp_path / "real").x, solution.x)


def test_folders(solution, tmp_path):
    with pytest.raises(bilevel.InvalidInputError, match="is a folder: name a file in it"):
        solution.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist: create it first"):
        solution.save(tmp_path / "missing" / "s")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        Solution.load(tmp_path / "missing")


def test_truncation_and_every_kind_of_flipped_byte_are_detected(solution, tmp_path):
    path = solution.save(tmp_path / "s")
    content = path.read_bytes()
    damaged = tmp_path / "damaged"
    for size in {0, 1, 7, 8, 9, 100, *range(0, len(content), len(content) // 40), len(content) - 1}:
        damaged.write_bytes(content[:size])
        with pytest.raises(bilevel.InvalidInputError, match="damaged"):  # the message names the file
            Solution.load(damaged)
    for position in range(0, len(content), 13):
        for mask in (0x01, 0x80, 0x2A):
            changed = bytearray(content)
            changed[position] ^= mask
            damaged.write_bytes(changed)
            with pytest.raises(bilevel.InvalidInputError):
                Solution.load(damaged)
    damaged.write_bytes(content + b"\0")
    with pytest.raises(bilevel.InvalidInputError):
        Solution.load(damaged)


def test_a_header_of_exabytes_allocates_nothing(tmp_path):
    path = tmp_path / "huge"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}" * 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(bilevel.InvalidInputError, match="not a safetensors file, or it is cut off"):
        Solution.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes


class Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("exploded",))


def test_foreign_files_are_refused_and_nothing_in_them_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pickle").write_bytes(pickle.dumps(Bomb()))
    torch.save({"x": torch.ones(2)}, "torch")
    save_file({"x": torch.ones(2)}, "weights")
    save_file({"x": torch.ones(2)}, "other", metadata={"bilevel": "{}", "sha256": "0" * 64})
    Path("text").write_text("x,y\n1,2\n" * 100)
    for name in ("pickle", "torch", "weights", "other", "text"):
        with pytest.raises(bilevel.InvalidInputError, match=name):
            Solution.load(name)
    assert not Path("exploded").exists()


RUN = ("value", "content")
SOLVER = (*RUN, "plan", "content", "solver")
X, STATE = (*RUN, "result", "dict", 0, 1), (*RUN, "state", "content", "current")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting("format", to="other"), "holds no bilevel.Run"),
        (setting("version", to=99), "format version 99 .* upgrade bilevel"),
        (setting(*RUN, "status", "content", to="FINE"), "status 'FINE' is unknown"),
        (setting(*RUN, "status", to=3), "status is 3, where a file has Status"),
        (setting(*X, to={"tensor": "nowhere"}), "tensor 'nowhere' is missing"),
        (setting(*X, to={"tensor": "run/state/current/x", "order": [1, 0]}), "invalid order"),
        (setting(*X, to=3.0), "holds no solution"),
        (setting(*X, to=[1]), "there is a list in place of a value"),
        (setting(*X, to={"pickle": "gASV"}), "unknown kind 'pickle'"),
        (setting(*RUN, "counts", to={"dict": [["steps", "many"]]}), "RunDocument.counts is {'steps': 'many'}"),
        (setting(*RUN, "counts", to={"dict": [[1.5, 2]]}), "key 1.5 is neither a text"),
        (setting(*RUN, "finished", to={"dict": [["minimize", 3]]}), "RunDocument.finished is {'minimize': 3}"),
        (setting(*RUN, "identity", to=3), "RunDocument.identity is 3"),
        (setting(*RUN, "kind", to="fit"), "is a run of fit"),
        (setting(*STATE, "object", to="os.system"), "'os.system', which is unknown"),
        (setting(*STATE, "content", "extra", to=1), "a DMLCBOState has the fields"),
        (setting(*STATE, "content", "step", to="1"), "DMLCBOState.step is '1', where a file has a whole number"),
        (setting(*STATE, "content", "seeds", to=None), "DMLCBOState.seeds is None"),
        (setting(*STATE, "content", "y", to=None), "y is None, where a file has a tensor or tensors by name"),
        (removing(*STATE, "content", "curvature"), "a DMLCBOState has the fields"),
        (removing(*RUN, "history"), "a RunDocument has the fields"),
        (setting(*RUN, "history", "list", 0, to={"dict": [["step", 1]]}), "holds no solution"),
        (setting(*RUN, "plan", "content", "steps", to=-1), "steps must be an integer of at least 1, got -1"),
        (setting(*SOLVER, "object", to="open"), "holds a 'open', which is unknown"),
        (setting(*SOLVER, "object", to="dataclass"), "holds a 'dataclass', which is unknown"),
        (setting(*SOLVER, "content", "upper_step", to=-1.0), 'upper_step must be a positive number or "auto", got'),
        (setting(*SOLVER, "content", "size", to=3), "a DMLCBO has the fields"),
        (setting(*RUN, "plan", "content", "logs", to={"dict": [["a", 3]]}), r"Plan.logs is \{'a': 3\}"),
        (setting(*RUN, "plan", to=None), "holds no solution"),
        (setting("value", to=3), "this is not a run saved by bilevel"),
        (lambda document, tensors: [document], "holds no bilevel.Run"),
    ],
)  # fmt: skip
def test_a_document_with_other_content_is_refused(solution, tmp_path, change, message):
    path = solution.save(tmp_path / "s")
    with pytest.raises(bilevel.InvalidInputError, match=message):
        Solution.load(edit(path, change))


def test_deep_nesting_is_refused(solution, tmp_path):
    path = solution.save(tmp_path / "s")
    nested: Any = None
    for _ in range(400):
        nested = {"list": [nested]}
    edited = edit(path, setting(*X, to=nested))
    with pytest.raises(bilevel.InvalidInputError):
        Solution.load(edited)


def test_states_of_other_solvers(solution, tmp_path):
    @dataclass(kw_only=True)
    class HomeMadeState(State):
        memory: list[Any]

    solution.document.state.current = HomeMadeState(x=solution.x, y=solution.y, memory=[1, (torch.ones(2), None)])
    loaded = Solution.load(solution.save(tmp_path / "s"))
    assert loaded.state.memory[0] == 1
    assert loaded.state.memory[1][0].tolist() == [1.0, 1.0]
    solution.document.state.current = SimpleNamespace(x=solution.x, y=solution.y)
    with pytest.raises(bilevel.InvalidInputError, match="derive from bilevel.solvers.State"):
        solution.save(tmp_path / "other")


def test_a_state_that_this_program_does_not_define_is_refused(solution, tmp_path):
    edited = edit(solution.save(tmp_path / "s"), setting(*STATE, "object", to="StrangeState"))
    with pytest.raises(bilevel.InvalidInputError, match="'StrangeState', which is unknown: import"):
        Solution.load(edited)


def test_what_has_no_place_in_a_file_is_named(solution, tmp_path):
    solution.state.adjoint = {(1, 2): torch.ones(1)}
    with pytest.raises(bilevel.InvalidInputError, match="state/current/adjoint is of type dict"):
        solution.save(tmp_path / "s")
    assert os.listdir(tmp_path) == []


def test_the_state_of_every_solver_can_be_stored(tmp_path):
    """Each state class of the library has its line in the registry, and a saved run of each solver resumes."""
    import inspect

    from bilevel import solvers
    from bilevel.testing.known_problems import known_problems

    known = next(known for known in known_problems() if known.name == "affine set")
    made = {name: thing() for name, thing in vars(solvers).items() if inspect.isclass(thing) and hasattr(thing, "init")
            and not getattr(thing, "_is_protocol", False)}  # fmt: skip
    assert len(made) >= 15
    for name, solver in made.items():
        try:
            half = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=2)
        except bilevel.IncompatibleError:
            continue
        path = half.save(tmp_path / f"{name}.safetensors")
        resumed = bilevel.minimize(known.problem, resume=bilevel.Solution.load(path), solver=solver, steps=2)
        once = bilevel.minimize(known.problem, known.x0, known.y0, solver=solver, steps=4)
        assert torch.equal(resumed.x, once.x), name
