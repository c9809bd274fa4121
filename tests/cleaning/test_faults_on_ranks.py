"""What goes wrong among ranks is an error on each of them, in time; a rank that is killed is started anew."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from tests.cleaning.on_ranks import arguments, finished, rank_of, start, torchrun, write_tables
from tests.ranks import free_port

from bilevel.cleaning import training  # noqa: F401  (files hold its classes)
from bilevel.errors import BilevelError
from bilevel.run.checkpoint import RunDocument

pytestmark = pytest.mark.reliability

LONGEST = 250.0
"""Seconds within which all must have ended: a few for the time-out, the rest to start Python on a busy machine."""


def refused(folder, environments, *words, tables=None):
    """The messages of processes that must all end with exit code 2, without a traceback, in time."""
    began = time.monotonic()
    tables = tables or ["train"] * len(environments)
    commands = [["bilevel", *arguments(table, "--timeout", "5", *words)] for table in tables]
    processes = [start(folder, command, told) for command, told in zip(commands, environments, strict=True)]
    ended = [finished(process, LONGEST) for process in processes]
    assert time.monotonic() - began < LONGEST
    for code, out, errors in ended:
        assert code == 2, (out, errors)
        assert "Traceback" not in errors
        assert "bilevel: " in errors
    return [errors for _, _, errors in ended]


def test_fewer_processes_than_world_size(tmp_path):
    write_tables(tmp_path)
    port = free_port()
    for rank, told in enumerate(refused(tmp_path, [rank_of(rank, 3, port) for rank in range(2)])):
        assert f"rank {rank} of 3 could not connect to the others at 127.0.0.1:{port} within 5 s" in told
        assert "start as many processes as WORLD_SIZE says" in told


def test_nobody_at_the_rendezvous(tmp_path):
    write_tables(tmp_path)
    port = free_port()
    (told,) = refused(tmp_path, [rank_of(1, 2, port)])
    assert f"rank 1 of 2 could not connect to the others at 127.0.0.1:{port} within 5 s" in told


def test_half_of_what_torchrun_tells(tmp_path):
    write_tables(tmp_path)
    (told,) = refused(tmp_path, [{"WORLD_SIZE": 2, "RANK": 0}])
    assert "MASTER_ADDR, MASTER_PORT are not: use torchrun, or unset them" in told


def test_ranks_that_see_other_files(tmp_path):
    """A shard is missing on one rank; its columns have another type; its trusted rows are others; its seed is."""
    write_tables(tmp_path)
    shutil.copytree(tmp_path / "train", tmp_path / "fewer")
    (tmp_path / "fewer" / "part-0.parquet").unlink()
    port = free_port()
    for told in refused(tmp_path, [rank_of(rank, 2, port) for rank in range(2)], tables=["train", "fewer"]):
        assert "the size of part-0.parquet is" in told
        assert "on rank 0 and None on rank 1: every rank must see the same files" in told
    shutil.copytree(tmp_path / "train", tmp_path / "typed")
    for path in (tmp_path / "typed").iterdir():
        pd.read_parquet(path).astype({"a": "float32"}).to_parquet(path, index=False)
    port = free_port()
    for told in refused(tmp_path, [rank_of(rank, 2, port) for rank in range(2)], tables=["train", "typed"]):
        assert "on rank 1: every rank must see the same files" in told
    port = free_port()
    for told in refused(tmp_path, [rank_of(rank, 2, port) for rank in range(2)], tables=["train", "nothing"]):
        assert "rank 1, looking at" in told
        assert "nothing" in told


def test_the_message_of_a_worker_reaches_the_user_of_torchrun(tmp_path):
    write_tables(tmp_path)
    (tmp_path / "train" / "part-1.parquet").write_bytes(b"PAR1, and no more")
    process = torchrun(tmp_path, 2, *arguments("train"), restarts=0)
    code, _, errors = finished(process, LONGEST)
    assert code != 0
    assert "bilevel: " in errors
    assert "part-1.parquet is not a Parquet file, or it is damaged" in errors


def test_a_restart_replaces_no_file_that_was_there_before(tmp_path):
    write_tables(tmp_path)
    (tmp_path / "weights.csv").write_text("mine")
    process = torchrun(tmp_path, 2, *arguments("train"), "--out", "weights.csv", restarts=1)
    code, _, errors = finished(process, LONGEST)
    assert code != 0
    assert "weights.csv" in errors
    assert (tmp_path / "weights.csv").read_text() == "mine"


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def workers(agent: int) -> list[int]:
    """The processes that torchrun has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == agent:
            found.append(int(status.parent.name))
    return found


def wait_for_checkpoint(path: Path, stage: str, process) -> None:
    """Until a checkpoint was written in this stage."""
    ends = time.monotonic() + LONGEST
    while process.poll() is None and time.monotonic() < ends:
        with contextlib.suppress(BilevelError):
            if RunDocument.load(path).stage == stage:
                return
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint in time: {process.communicate()}")


def test_a_rank_that_is_killed_is_started_again_and_ends_at_the_same_result(tmp_path):
    write_tables(tmp_path, rows=2600)
    settings = ["--noise", "rows", "--radius", "2", "--steps", "60"]
    names = {name: ["--out", f"{name}.csv", "--checkpoint", f"{name}.safetensors"] for name in ("whole", "killed")}
    whole = torchrun(tmp_path, 2, *arguments("train", *settings, *names["whole"]))
    code, _, errors = finished(whole, 600)
    assert code == 0, errors
    killed = torchrun(tmp_path, 2, *arguments("train", *settings, *names["killed"]))
    wait_for_checkpoint(tmp_path / "killed.safetensors", "learning rows", killed)
    os.kill(workers(killed.pid)[-1], signal.SIGKILL)
    code, _, errors = finished(killed, 600)
    assert code == 0, errors
    assert "reading train in 2 processes\n" in errors
    assert "reading train in 2 processes, to resume from killed.safetensors\n" in errors
    assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()  # the same bits


def test_ctrl_c_keeps_the_best_so_far_on_all_ranks(tmp_path):
    write_tables(tmp_path, rows=2600)
    settings = ["--noise", "rows", "--radius", "2", "--steps", "100000", "--out", "w.csv"]
    process = torchrun(tmp_path, 2, *arguments("train", *settings, "--checkpoint", "run.safetensors"))
    wait_for_checkpoint(tmp_path / "run.safetensors", "learning rows", process)
    process.send_signal(signal.SIGINT)
    _, _, errors = finished(process, LONGEST)
    assert "stopped by Ctrl-C: the results so far are kept and marked as interrupted" in errors
    assert len(pd.read_csv(tmp_path / "w.csv")) == 2600
