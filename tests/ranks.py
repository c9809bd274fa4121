"""Several ranks on this machine, for tests: each runs a function of a test module and returns what JSON can hold."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 120.0
"""How long ranks may take before they are ended."""


def on_ranks(
    function: Any, size: int, *arguments: Any, seconds: float = SECONDS, environment: dict[str, str] | None = None
) -> list[Any]:
    """What `function(ranks, *arguments)`, a function of a module's top level, returns on each of `size` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            _start(function, rank, size, arguments, Path(folder) / f"{rank}.json", port, environment or {})
            for port in [free_port()]
            for rank in range(size)
        ]
        told = _told(processes, seconds)
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{told}"
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def _told(processes: list[Any], seconds: float) -> str:
    """What all of them wrote; those that take longer are killed."""
    until, texts = time.monotonic() + seconds, []
    for process in processes:
        try:
            texts.append(process.communicate(timeout=max(until - time.monotonic(), 0.1))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            texts.append(f"{process.communicate()[0]}\n(killed after {seconds:g} s)")
    return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(texts))


def _start(
    function: Any, rank: int, size: int, arguments: tuple[Any, ...], out: Path, port: int, more: dict[str, str]
) -> Any:
    told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = os.environ | {name: str(value) for name, value in told.items()} | {"OMP_NUM_THREADS": "1"} | more
    asked = [sys.modules[function.__module__].__file__, function.__name__, json.dumps(arguments), str(out)]
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, asked)], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _main(file: str, name: str, arguments: str, out: str) -> None:
    import importlib.util

    import torch

    from bilevel.ranks import connect

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    spec = importlib.util.spec_from_file_location("asked", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["asked"] = module
    spec.loader.exec_module(module)
    with connect(timeout=60) as ranks:
        result = getattr(module, name)(ranks, *json.loads(arguments))
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
