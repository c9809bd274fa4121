"""Several ranks on this machine, for tests: each runs a function of a test module and returns what JSON can hold.

Ranks are forked from a server that has loaded torch and bilevel once, instead of loading them anew in each of them.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])
SECONDS = 300.0
"""How long ranks may take before they are ended."""
PRELOADED = ["torch.distributed", "pytest", "bilevel.ranks", "bilevel.run", "bilevel.cleaning", "bilevel.few_shot"]


def on_ranks(
    function: Any, size: int, *arguments: Any, seconds: float = SECONDS, environment: dict[str, str] | None = None
) -> list[Any]:
    """What `function(ranks, *arguments)`, a function of a module's top level, returns on each of `size` ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    shared = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), **(environment or {})}
    called = sys.modules[function.__module__].__file__, function.__name__, json.dumps(arguments)
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(rank) for rank in range(size)]
        processes = []
        for rank, out in enumerate(outs):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), **{k: str(v) for k, v in shared.items()}}
            processes.append(context.Process(target=_rank, args=(variables, *called, out)))
            processes[-1].start()
        until = time.monotonic() + seconds
        for process in processes:
            process.join(max(until - time.monotonic(), 0.1))
            if process.exitcode is None:
                process.kill()
                process.join()
        written = "\n".join(f"rank {rank}: {out.with_suffix('.log').read_text()}" for rank, out in enumerate(outs))
        for rank, process in enumerate(processes):
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}:\n{written}"
        return [json.loads(out.read_text()) for out in outs]


def _rank(variables: dict[str, str], file: str, name: str, arguments: str, out: Path) -> None:
    """One rank: calls the function of the file, and writes what it returns."""
    with out.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    os.environ.update(variables)

    import torch

    from bilevel.ranks import connect

    torch.set_num_threads(1)
    sys.path.insert(0, ROOT)
    spec = importlib.util.spec_from_file_location("called", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["called"] = module
    spec.loader.exec_module(module)
    try:
        with connect(timeout=200) as ranks:
            result = getattr(module, name)(ranks, *json.loads(arguments))
        out.write_text(json.dumps(result))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
