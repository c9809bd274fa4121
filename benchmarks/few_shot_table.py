"""The paper's four few-shot problems with every method of its Table 3, each for the same time, on one thread each.

    python -m benchmarks.few_shot_table --data DATA [--minutes 15] [--workers 2] [--out results/few-shot]
    python -m benchmarks.few_shot_table --curves [--out results/few-shot]

The first trains what has not been trained for so long yet (a file per run, which a second call goes on from, also with
more minutes) and prints the table; the second draws accuracy on novel classes against minutes of training from the
stored curves (curves.svg, and as a table curves.md). Networks are trained on tasks of 20 classes: one training of a
method on a set of images is judged on tasks of 5 and of 10. Minutes are those of one processor, in training steps
alone: programs beside it do not shorten a run. The network kept is the best on 10-way tasks of validation classes; the
accuracy is that on 600 tasks of 15 queries per class of novel classes. The curve has 100 tasks of novel classes at each
point.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

from bilevel._files import write_atomically

from .harness import hardware

METHODS = {
    "dmlcbo": "DMLCBO, solved duals",
    "vpbgd": "V-PBGD, solved duals",
    "approx": "Approx, solved duals",
    "rmd-pcd": "RMD, solved duals (not PCD)",
    "adam": "Implicit + Adam",
}
"""What ran. All methods begin at the solved duals of fresh tasks: of DMLCBO the upper level is left, and RMD-PCD takes
steps of all dual variables at once, since a batch of tasks is one product."""
PAPER: dict[tuple[str, int], dict[str, tuple[float, float]]] = {
    (data, ways): dict(zip(("dmlcbo", "vpbgd", "approx", "rmd-pcd"), printed, strict=True))
    for data, ways, *printed in (
        ("omniglot", 5, (99.97, 0.04), (95.67, 1.02), (99.41, 0.25), (99.69, 0.37)),
        ("omniglot", 10, (99.81, 0.19), (98.43, 0.16), (99.57, 0.17), (99.29, 0.17)),
        ("fc100", 5, (85.25, 0.01), (78.14, 1.97), (74.19, 1.35), (84.75, 0.65)),
        ("fc100", 10, (86.93, 0.89), (67.18, 0.75), (69.10, 0.85), (81.18, 0.39)),
    )
}
"""Table 3 of the paper: mean and +-."""
STEPS = {("fc100", "vpbgd"): 0.001, ("fc100", "rmd-pcd"): 0.0001}
"""Upper steps where that of `options.SOLVERS` diverges."""
WAYS = (5, 10)
LOOK_EVERY = 500
"""Steps between points of the curve."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_shot_table", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--data", type=Path, help="the data folder")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--workers", type=int, default=2, help="runs side by side")
    parser.add_argument("--datasets", nargs="+", default=["omniglot", "fc100"], choices=["omniglot", "fc100"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--width", type=int, default=32, help="channels of the network")
    parser.add_argument("--out", type=Path, default=Path("build/few-shot"))
    parser.add_argument("--curves", action="store_true", help="only draw the curves of what is stored")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    runs = [(data, method) for data in arguments.datasets for method in arguments.methods]
    if arguments.one:
        train(*runs[0], arguments)
    elif arguments.curves:
        draw(arguments.out)
    else:
        (arguments.out / "networks").mkdir(parents=True, exist_ok=True)
        side_by_side([run for run in runs if not is_done(*run, arguments)], arguments)
        text = markdown(arguments.out)
        (arguments.out / "table.md").write_text(text)
        print(text)


def stored(folder: Path, data: str, method: str) -> Path:
    return folder / f"{data}-{method}.json"


def is_done(data: str, method: str, arguments: Any) -> bool:
    """Trained for so long, or ended by itself."""
    row = read(arguments.out, data, method)
    if row["curve"] and row["experiment"]["width"] != arguments.width:
        sys.exit(
            f"{stored(arguments.out, data, method)} has {row['experiment']['width']} channels: choose another --out"
        )
    return "novel" in row and (row["minutes"] >= arguments.minutes or row["status"] in ("DIVERGED", "FAILED"))


def read(folder: Path, data: str, method: str) -> dict[str, Any]:
    """What is stored of a run."""
    path = stored(folder, data, method)
    return json.loads(path.read_text()) if path.exists() else {"curve": []}


def save(path: Path, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=1) + "\n"
    write_atomically(path, lambda file: file.write_text(text), overwrite=True)


def side_by_side(runs: list[tuple[str, str]], arguments: Any) -> None:
    """Each run in a process of its own, as many at once as there are workers."""
    running: list[subprocess.Popen] = []

    def wait_for_one() -> None:
        while all(process.poll() is None for process in running):
            time.sleep(1.0)
        for process in [process for process in running if process.poll() is not None]:
            running.remove(process)
            if process.returncode:
                print(f"failed: {' '.join(process.args)}", file=sys.stderr)  # type: ignore[arg-type]

    for data, method in runs:
        if len(running) == arguments.workers:
            wait_for_one()
        command = [sys.executable, "-m", "benchmarks.few_shot_table", "--one", "--out", str(arguments.out)]
        command += ["--minutes", str(arguments.minutes), "--datasets", data, "--methods", method]
        command += ["--width", str(arguments.width)]
        running.append(subprocess.Popen(command + (["--data", str(arguments.data)] if arguments.data else [])))
    while running:
        wait_for_one()


def train(data: str, method: str, arguments: Any) -> None:
    """One run, and its JSON."""
    import torch

    from bilevel.few_shot.options import Experiment

    torch.set_num_threads(1)
    settings = {"dataset": data, "solver": method, "width": arguments.width, "step": STEPS.get((data, method))}
    experiments = {ways: Experiment(ways=ways, **settings) for ways in WAYS}
    splits = {ways: experiment.splits(arguments.data) for ways, experiment in experiments.items()}
    hardest, path = max(WAYS), stored(arguments.out, data, method)
    result = {"experiment": experiments[hardest].identity, "curve": read(arguments.out, data, method)["curve"]}
    points, learner = result["curve"], experiments[hardest].learner()

    def judged(part: str, **how: int) -> dict[str, dict[str, float]]:
        found = {ways: learner.evaluate(getattr(splits[ways], part), **how) for ways in WAYS}
        return {str(ways): {"mean": 100 * one.mean, "interval": 100 * one.interval} for ways, one in found.items()}

    def look(record: Any, learner: Any) -> None:
        point = {"step": record.step, "minutes": record.seconds / 60, "loss": record.loss,
                 "validation": 100 * record.validation, "novel": judged("test", count=100, seed=1)}  # fmt: skip
        points[:] = [*(earlier for earlier in points if earlier["step"] < record.step), point]
        save(path, result)
        print(f"{data} {method}: {point}", flush=True)

    training = learner.fit(
        splits[hardest].train, minutes=arguments.minutes, validate=splits[hardest].validation, validate_count=200,
        evaluate_every=LOOK_EVERY, checkpoint=arguments.out / "networks" / f"{path.stem}.safetensors", resume=True,
        callbacks=[look], clock=time.process_time,
    )  # fmt: skip
    result |= {
        "minutes": training.seconds / 60, "steps": training.step, "status": training.status.name,
        "novel": judged("test", count=600, seed=2), "seen": judged("seen", count=200, seed=2), "hardware": hardware(),
    }  # fmt: skip
    save(path, result)


def results(folder: Path) -> dict[tuple[str, int], dict[str, dict]]:
    """What is stored, by problem and method."""
    found: dict[tuple[str, int], dict[str, dict]] = {}
    for data, ways in PAPER:
        for method in METHODS:
            row = read(folder, data, method)
            if "novel" in row:
                found.setdefault((data, ways), {})[method] = row
    return found


def markdown(folder: Path) -> str:
    """The table: ours with its 95 % interval over tasks, the paper's mean and +- over runs."""
    names = ("problem", "method", "paper, ± over runs", "novel classes, ± over tasks", "training classes", "steps")
    lines = [f"| {' | '.join(names)} | minutes |", "|" + " --- |" * (len(names) + 1)]
    for (data, ways), methods in results(folder).items():
        for method, row in methods.items():
            printed = PAPER[data, ways].get(method)
            paper = "" if printed is None else f"{printed[0]:.2f} ± {printed[1]:.2f}"
            novel, seen = (row[part][str(ways)] for part in ("novel", "seen"))
            lines.append(
                f"| {data} {ways}-way 5-shot | {METHODS[method]} | {paper} | {novel['mean']:.2f} ± "
                f"{novel['interval']:.2f} | {seen['mean']:.2f} | {row['steps']} | {ended(row)} |"
            )
    return "\n".join(lines) + "\n"


def ended(row: dict[str, Any]) -> str:
    """Minutes, and the status if it was not the end of the time."""
    return f"{row['minutes']:.1f}" + ("" if row["status"] in ("STEPS", "TIME") else f", {row['status'].lower()}")


def draw(folder: Path) -> None:
    """One panel per problem, one line per method."""
    from matplotlib.figure import Figure

    found = results(folder)
    if not found:
        sys.exit(f"{folder} holds no run: train first")
    columns = min(2, len(found))
    figure = Figure(figsize=(5 * columns, 3.5 * -(-len(found) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(found) // columns), columns, squeeze=False)
    for axis, ((data, ways), methods) in zip(axes.flat, found.items(), strict=False):
        for method, row in methods.items():
            novel = [point["novel"][str(ways)] for point in row["curve"]]
            minutes, means = [point["minutes"] for point in row["curve"]], [one["mean"] for one in novel]
            (line,) = axis.plot(minutes, means, label=METHODS[method])
            low, high = ([one["mean"] + sign * one["interval"] for one in novel] for sign in (-1, 1))
            axis.fill_between(minutes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axis.set(title=f"{data}, {ways}-way 5-shot", xlabel="minutes of training", ylabel="accuracy, novel classes, %")
    axes[0, 0].legend(frameon=False)
    figure.savefig(folder / "curves.svg", metadata={"Date": None})
    (folder / "curves.md").write_text(points(folder))
    print(f"drawn: {folder / 'curves.svg'}; its points: {folder / 'curves.md'}")


def points(folder: Path) -> str:
    """The curves as a table."""
    lines = ["| images | method | step | minutes | loss | 5-way, % | 10-way, % |", "|" + " --- |" * 7]
    for data in dict.fromkeys(data for data, _ in PAPER):
        for method, name in METHODS.items():
            for point in read(folder, data, method)["curve"]:
                five, ten = (f"{one['mean']:.1f} ± {one['interval']:.1f}" for one in point["novel"].values())
                lines.append(f"| {data} | {name} | {point['step']} | {point['minutes']:.1f} | {point['loss']:.3f} | "
                             f"{five} | {ten} |")  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
