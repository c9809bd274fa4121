"""Files of ours whose content was changed and whose checksum fits: what a careless or hostile program could write.

    python mutants.py COUNT [KIND ...]

Each mutant of a file is read, and used as a user would use it. A line of JSON per kind says how many were refused, how
many were taken, which errors were none of ours, the slowest one and the memory that all of them took.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import bilevel
from bilevel.ranks import Ranks

VALUES: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 3, lambda: 2**70, lambda: -(2**63), lambda: 1e308,
    lambda: 0.5, lambda: "", lambda: "x" * 1000, lambda: "os.system", lambda: "a\0b", lambda: [], lambda: {},
    lambda: [[]], lambda: {"float": "nan"}, lambda: {"float": "inf"}, lambda: {"tuple": []}, lambda: {"list": [1, "a"]},
    lambda: {"dict": [["a", 1]]}, lambda: {"dict": [[1, 2, 3]]}, lambda: {"dict": 3}, lambda: {"object": "Plan"},
    lambda: {"object": "Status", "content": "STEPS"}, lambda: {"object": [], "content": {}}, lambda: {"tensor": []},
    lambda: {"tensor": "x", "order": "y"}, lambda: json.loads("[" * 200 + "]" * 200), lambda: "9" * 5000,
]  # fmt: skip
DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.int64, torch.uint8, torch.complex64, torch.bfloat16,
          torch.float16, torch.float32]  # fmt: skip


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, entry in inside for place in nodes(entry, (*path, key)))]


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def changed(document: Any, draw: random.Random) -> Any:
    """A copy with one to three nodes replaced, exchanged, doubled or taken away."""
    document = copy.deepcopy(document)
    for _ in range(draw.choice([1, 1, 2, 3])):
        path = draw.choice(nodes(document)[1:])
        around, key = at(document, path[:-1]), path[-1]
        kind = draw.choice(["replace", "replace", "replace", "other", "delete", "double"])
        if kind == "replace":
            around[key] = draw.choice(VALUES)()
        elif kind == "other":
            around[key] = copy.deepcopy(at(document, draw.choice(nodes(document))))
        elif kind == "delete":
            del around[key]
        elif isinstance(around, list):
            around.insert(key, copy.deepcopy(around[key]))
        else:
            around[f"{key}'"] = copy.deepcopy(around[key])
    return document


def changed_tensors(tensors: dict[str, torch.Tensor], draw: random.Random) -> dict[str, torch.Tensor]:
    """A copy with one tensor of another type, shape or content."""
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    name = draw.choice(sorted(tensors))
    old = tensors[name]
    kinds = {
        "dtype": lambda: old.to(draw.choice(DTYPES)),
        "shape": lambda: old.reshape(-1)[: draw.randrange(old.numel() + 1)].clone(),
        "more": lambda: old[None].clone(),
        "huge": lambda: torch.full_like(old, 1e30) if old.is_floating_point() else old,
        "nan": lambda: torch.full_like(old, torch.nan) if old.is_floating_point() else old,
    }
    tensors[name] = kinds[draw.choice(sorted(kinds))]()
    if draw.random() < 0.1:
        del tensors[name]
    return tensors


def mutate(source: Path, target: Path, draw: random.Random) -> None:
    """Write a mutant of a document, with a checksum that fits."""
    with safe_open(source, framework="pt") as file:
        document = json.loads(file.metadata()["bilevel"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if draw.random() < 0.25:
        tensors = changed_tensors(tensors, draw)
    else:
        document = changed(document, draw)
    save_signed(tensors, document, target)


def save_signed(tensors: dict[str, torch.Tensor], document: Any, target: Path) -> None:
    """A file of ours with its checksum: the SHA-256 of all its bytes, 64 zeros in the place of the checksum."""
    empty = "0" * 64
    save_file(tensors, target, metadata={"format": "pt", "bilevel": json.dumps(document), "sha256": empty})
    content = target.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    target.write_bytes(content.replace(f'"sha256":"{empty}"'.encode(), f'"sha256":"{digest}"'.encode()))


# --- kinds of files: each writes a good one, and says how it is used ------------------------------------------------


def problem() -> bilevel.Problem:
    return bilevel.Problem(
        upper=lambda x, y: (y - 0.5).square().sum(), lower=lambda x, y: (y - x).square().sum(),
        constraint=bilevel.sets.L1Ball(1.0), x0=torch.zeros(2).double(), y0=torch.zeros(2).double(),
    )  # fmt: skip


def run(path: Path) -> list[Callable[[Path], Any]]:
    """The checkpoint of `minimize`."""

    def stop(record: Any, state: Any) -> None:
        if record.step == 20:
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"steps": 30, "evaluate_every": 10, "output": "best"}
    bilevel.minimize(problem(), callbacks=[stop], checkpoint=path, **settings)
    from bilevel import cli

    return [
        lambda file: repr(bilevel.Solution.load(file)) + str(bilevel.Solution.load(file).rows()),
        lambda file: bilevel.Solution.load(file).save(file.with_name("again.safetensors"), overwrite=True),
        lambda file: bilevel.minimize(problem(), resume=file, steps=1),
        lambda file: bilevel.minimize(problem(), resume=file, seconds=0.05),
        lambda file: cli.main(["resume", str(file), "--problem", "mutants:problem"]),
    ]


def _table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(60, 3))
    return X, np.where(X[:, 0] > 0, "a", "b"), np.arange(60) < 20


def fit(path: Path) -> list[Callable[[Path], Any]]:
    """The checkpoint of `HyperCleaner.fit`."""
    X, y, trusted = _table()

    class Enough(Exception):
        pass

    calls: list[Any] = []

    def stop(event: Any) -> None:
        calls.append(event)
        if len(calls) == 4:
            raise Enough

    with contextlib.suppress(Enough):
        bilevel.HyperCleaner(steps=3, random_state=0, callback=stop).fit(X, y, trusted=trusted, checkpoint=path)
    return [lambda file: bilevel.HyperCleaner(steps=3, random_state=0).fit(X, y, trusted=trusted, resume=file)]


def training(path: Path) -> list[Callable[[Path], Any]]:
    """The checkpoint of `MetaLearner.fit`."""
    from bilevel.few_shot import ConvNet, Episodes, MetaLearner, SVMHead, generated_images

    episodes = Episodes(generated_images(10, 8, 16), ways=3, shots=2, queries=4)

    def learner() -> MetaLearner:
        return MetaLearner(ConvNet(image_size=16, width=2), SVMHead(ways=3), tasks_per_step=1)

    learner().fit(episodes, steps=2, evaluate_every=1, validate=episodes, validate_count=3, checkpoint=path)
    return [
        lambda file: learner().load(file).evaluate(episodes, count=2),
        lambda file: learner().fit(episodes, steps=3, evaluate_every=1, resume=file),
    ]


def model(path: Path) -> list[Callable[[Path], Any]]:
    """The model of `bilevel clean --model`."""
    from bilevel import cli
    from bilevel.cleaning import load_cleaner

    table = path.with_name("table.csv")
    _frame().to_csv(table, index=False)
    given = ["clean", str(table), "--label", "label", "--trusted-column", "checked", "--model", str(path), "--force"]
    assert cli.main([*given, "--steps", "1"]) == 0
    return [
        lambda file: repr(load_cleaner(file).cleaner),
        lambda file: load_cleaner(file).cleaner.label_issues(),
        lambda file: cli.main(["predict", str(file), str(table)]),
    ]


def _frame() -> Any:
    import pandas as pd

    X, y, trusted = _table()
    frame = pd.DataFrame(X, columns=["p", "q", "r"]).assign(colour=np.where(X[:, 1] > 0, "red", "blue"))
    return frame.assign(label=y, checked=trusted.astype(int))


def _clean(file: Path, *known: str) -> int:
    from bilevel import cli

    options = ["--label", "label", *(known or ("--trusted-column", "checked"))]
    return cli.main(["clean", str(file), *options, "--steps", "1", "--noise", "transition", "--json"])


def text_table(path: Path) -> list[Callable[[Path], Any]]:
    """A table for `bilevel clean`."""
    _frame().to_csv(path, index=False)
    return [_clean]


def parquet_table(path: Path) -> list[Callable[[Path], Any]]:
    """The same as a Parquet file."""
    _frame().to_parquet(path)
    return [_clean]


def array_table(path: Path) -> list[Callable[[Path], Any]]:
    """The same as NumPy's arrays, the rows of which are changed."""
    X, y, trusted = _table()
    for name, rows in (("all", slice(None)), ("trusted", trusted)):
        folder = path.parent / name
        folder.mkdir(exist_ok=True)
        np.save(folder / "rows.npy", X[rows])
        np.save(folder / "labels.npy", y[rows])
    shutil.copy(path.parent / "all" / "rows.npy", path)

    def use(file: Path) -> int:
        rows = shutil.copy(file, path.parent / "all" / "rows.npy")
        return _clean(Path(rows), "--trusted", str(path.parent / "trusted" / "rows.npy"))

    return [use]


def decisions(path: Path) -> list[Callable[[Path], Any]]:
    """The decisions about rows that `bilevel clean --verified` reads."""
    from bilevel.cleaning.options import CleanOptions
    from bilevel.cleaning.prepare import prepare

    _, y, _ = _table()
    table = path.with_name("table.csv")
    _frame().to_csv(table, index=False)
    lines = [f"{i + 1},{y[i]},{['right', 'wrong', 'unsure'][i % 3]},b,{i % 2}" for i in range(30)]
    path.write_text("\n".join(["row,given_label,verdict,verified_label,drawn_at_random", *lines, ""]))
    options = CleanOptions(table, label="label", trusted_column="checked")
    return [lambda file: prepare(replace(options, verified=str(file)), Ranks())]  # all that comes before learning


def configuration(path: Path) -> list[Callable[[Path], Any]]:
    """The TOML file of an experiment."""
    from bilevel.experiments.command import load_tables
    from bilevel.experiments.configuration import FOLDER
    from bilevel.experiments.options import ReproduceOptions
    from bilevel.experiments.plan import count_runs

    shutil.copy(FOLDER / "table-2.toml", path)
    return [lambda file: count_runs(load_tables(ReproduceOptions(target="table-2", configuration=(file,))))]


TOML_VALUES = ["true", "-1", "0", "nan", "inf", "1e308", "9" * 5000, '""', '"a\\u0000b"', '"""', "[]", "{}", "[[1]]",
               "[" * 200 + "]" * 200, "{a = " * 200 + "1" + "}" * 200, "1979-05-27", "0x" + "f" * 5000, "'\0'",
               "1_0"]  # fmt: skip


def changed_toml(source: Path, target: Path, draw: random.Random) -> None:
    """The value of one to three keys replaced, or a few bytes changed."""
    if draw.random() < 0.3:
        return flipped(source, target, draw)
    lines = source.read_text().split("\n")
    keys = [i for i, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    for i in draw.sample(keys, draw.choice([1, 1, 2, 3])):
        lines[i] = f"{lines[i].partition('=')[0]}= {draw.choice(TOML_VALUES)}"
    target.write_text("\n".join(lines))


def flipped(source: Path, target: Path, draw: random.Random) -> None:
    """Bytes changed, cut off, or doubled: these files have no checksum."""
    content = bytearray(source.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 8])):
        place = draw.randrange(len(content))
        piece = content[place : place + draw.choice([1, 4, 50])]
        size = len(piece)
        new = [b"", bytes(size), draw.randbytes(size), piece + piece, b"\xff" * size, b',"\n']
        content[place : place + size] = draw.choice(new)
    target.write_bytes(content)


def store_record(path: Path) -> list[Callable[[Path], Any]]:
    """The record of a stored run, which `bilevel status` and `bilevel results export` read."""
    from bilevel import cli
    from bilevel.experiments.run_folder import RunRecord

    about: dict[str, Any] = {"experiment": "table-2", "role": "final", "dataset": "a", "method": "b", "status": "steps"}
    record = RunRecord(identity="0123456789abcdef", settings={"upper_step": 0.1}, seed=0, final={"step": 3.0}, **about)
    path.write_text(json.dumps({name: value for name, value in vars(record).items() if name != "curve"}))
    store = path.parent / "store"
    folder = store / "runs" / "0123456789abcdef"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "curve.csv").write_text("step\n3\n")

    def placed(*command: str) -> Callable[[Path], int]:
        def use(file: Path) -> int:
            shutil.copy(file, folder / "record.json")
            return cli.main([*command, "--results", str(store)])

        return use

    export = ["--out", str(path.parent / "export.csv"), "--force"]
    return [placed("status"), placed("results", "export", *export)]


def changed_json(source: Path, target: Path, draw: random.Random) -> None:
    target.write_text(json.dumps(changed(json.loads(source.read_text()), draw)))


KINDS: dict[str, tuple[str, Callable[[Path], list[Callable[[Path], Any]]], Callable[..., None]]] = {
    "run": (".safetensors", run, mutate),
    "fit": (".safetensors", fit, mutate),
    "training": (".safetensors", training, mutate),
    "model": (".safetensors", model, mutate),
    "text table": (".csv", text_table, flipped),
    "Parquet table": (".parquet", parquet_table, flipped),
    "NumPy table": (".npy", array_table, flipped),
    "decisions": (".csv", decisions, flipped),
    "configuration": (".toml", configuration, changed_toml),
    "record": (".json", store_record, changed_json),
}


def judge(kind: str, count: int, folder: Path) -> dict[str, Any]:
    """Read and use so many mutants of one kind."""
    suffix, make, change = KINDS[kind]
    source = folder / f"{kind}{suffix}"
    uses = make(source)
    for use in uses:  # as it is, it is taken
        good = folder / f"good{suffix}"
        shutil.copy(source, good)
        answer = use(good)
        assert not isinstance(answer, int) or answer == 0, answer
    draw, target = random.Random(0), folder / f"mutant{suffix}"
    found: dict[str, Any] = {"kind": kind, "mutants": count, "refused": 0, "taken": 0, "odd": {}, "slowest": 0.0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(count):
        change(source, target, draw)
        refused = False
        began = time.process_time()
        for use in uses:
            try:
                answer = use(target)
                refused |= isinstance(answer, int) and answer == 2
            except bilevel.BilevelError:
                refused = True
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                name = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {str(error)[:100]}"
                found["odd"].setdefault(name, i)
        found["slowest"] = max(found["slowest"], time.process_time() - began)
        found["refused" if refused else "taken"] += 1
    found["memory"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return found


def main(count: int, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds or KINDS:
            print(json.dumps(judge(kind, count, Path(folder))), file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
