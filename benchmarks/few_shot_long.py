"""One long training on Omniglot or FC100, and its accuracy on tasks of several numbers of classes.

    python -m benchmarks.few_shot_long omniglot MODEL --data DATA --steps 20000 --halve-every 4000
    python -m benchmarks.few_shot_long omniglot MODEL --data DATA [--ways 5 10 20] [--tasks 1000] [--out FILE.json]

The first trains the recipe of that name until the step given, going on from the file MODEL if it exists; both evaluate
the network that was best on validation classes. Minutes are processor time of training steps.
Accuracy is that on tasks of 15 queries per class, of novel classes and, beside it, of training classes. Stored as JSON,
with the accuracies as a table (.md), the curve as a table (-curve.md) and as a picture (.svg).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

from bilevel.few_shot.options import Experiment

from .harness import hardware

RECIPES = {
    "omniglot": Experiment(dataset="omniglot", ways=10, train_ways=20, width=64, bfloat16=True),
    "fc100": Experiment(dataset="fc100", ways=5, train_ways=20, width=64, bfloat16=True),
}
"""DMLCBO on fresh tasks with solved duals, four convolutions of 64 channels with batch normalisation."""
RECORD_EVERY, VALIDATION_TASKS = 500, 200

LABELS = {"dmlcbo": "DMLCBO, solved duals", "dmlcbo-as-published": "DMLCBO as published, fixed tasks"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_shot_long", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("model", type=Path, help="the .safetensors file of the network and the state of training")
    parser.add_argument("--data", type=Path, help="the data folder")
    parser.add_argument("--steps", type=int, help="train until this step, counted from the first one")
    parser.add_argument("--halve-every", type=int, help="halve the step size after every so many steps")
    parser.add_argument("--ways", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("build/few-shot-long.json"))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    if arguments.steps is not None:
        train(RECIPES[arguments.recipe], arguments)
    found = measured(arguments.model, arguments.data, arguments.ways, arguments.tasks)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(accuracies(found))
    arguments.out.with_name(f"{arguments.out.stem}-curve.md").write_text(curve(found))
    draw(found, arguments.out.with_suffix(".svg"))
    print(f"{accuracies(found)}\n{curve(found)}\nstored in {arguments.out}, with .md, -curve.md and .svg")


def train(experiment: Experiment, arguments: Any) -> None:
    """Until the step given."""
    splits = experiment.splits(arguments.data)
    experiment.learner().fit(
        splits.train, steps=arguments.steps, halve_every=arguments.halve_every, validate=splits.validation,
        validate_count=VALIDATION_TASKS, evaluate_every=RECORD_EVERY, checkpoint=arguments.model, resume=True,
        clock=time.process_time, callbacks=[lambda record, learner: print(record, flush=True)],
    )  # fmt: skip


def measured(model: Path, data: Path | None, ways: list[int], tasks: int) -> dict[str, Any]:
    """All that is stored."""
    from bilevel.run.checkpoint import Checkpoint

    document = Checkpoint.of(model).load()
    experiment = Experiment.from_identity(document.identity)
    learner = experiment.learner().load(model)
    rows = []
    for each in ways:
        splits = replace(experiment, ways=each).splits(data)
        parts = {"novel": splits.test, "training": splits.seen}
        rows.append(
            {"ways": each} | {name: asdict(learner.evaluate(part, count=tasks)) for name, part in parts.items()}
        )
    about = {"experiment": experiment.identity, "steps": document.state.step, "minutes": document.seconds / 60}
    about["hardware"] = hardware()
    return {**about, "accuracy": rows, "curve": [asdict(record) for record in document.history]}


def accuracies(found: dict[str, Any]) -> str:
    """The accuracies as a table, with the paper's beside them."""
    from bilevel.experiments.paper_values import TABLES

    experiment = found["experiment"]
    lines = ["| tasks | method | printed | novel classes | training classes | steps |", "|" + " --- |" * 6]
    for row in found["accuracy"]:
        dataset, shots = experiment["dataset"], experiment["shots"]
        cell = TABLES["table-3"].cells.get(f"{dataset}-{row['ways']}way", {}).get("dmlcbo")
        printed = f"{cell.mean:.2f} ± {cell.std:.2f}" if cell and shots == 5 else "not printed"
        novel, seen = (
            f"{100 * one['mean']:.2f} ± {100 * one['interval']:.2f}" for one in (row["novel"], row["training"])
        )
        lines.append(
            f"| {dataset} {row['ways']}-way {shots}-shot | {LABELS.get(experiment['solver'], experiment['solver'])} | "
            f"{printed} | {novel} | {seen} | {found['steps']} |"
        )
    return "\n".join(lines) + "\n"


def curve(found: dict[str, Any]) -> str:
    """The learning curve as a table."""
    lines = ["| step | loss | accuracy on training tasks, % | accuracy on validation classes, % |", "|" + " --- |" * 4]
    for record in found["curve"]:
        validation = f"{100 * record['validation']:.2f} ± {100 * record['interval']:.2f}"
        lines.append(f"| {record['step']} | {record['loss']:.3f} | {100 * record['accuracy']:.1f} | {validation} |")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Any], path: Path) -> None:
    """Error on validation classes against steps."""
    from matplotlib.figure import Figure

    steps, errors, halves = zip(
        *((record["step"], 100 - 100 * record["validation"], 100 * record["interval"]) for record in found["curve"]),
        strict=True,
    )
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    (line,) = axes.plot(steps, errors)
    low, high = ([e + sign * h for e, h in zip(errors, halves, strict=True)] for sign in (-1, 1))
    axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="steps", ylabel=f"error on {found['experiment']['ways']}-way tasks of validation classes, %")
    axes.set_yscale("log")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
