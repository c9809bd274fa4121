"""Commands in processes forked from this one, which has imported what they need: a start takes no time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.ranks import free_port

from bilevel import cli


class Command:
    """`bilevel ARGUMENTS` in a folder, on one rank or, as under torchrun, on several."""

    def __init__(self, folder: Path, *arguments: str, ranks: int = 1) -> None:
        self.log = folder.with_name(f"{folder.name}.log")
        self.log.write_text("")
        shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.processes: list[int] = []
        self.codes: dict[int, int] = {}
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                joined = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
                self._run(folder, arguments, joined)
            self.processes.append(child)

    def _run(self, folder: Path, arguments: tuple[str, ...], variables: dict[str, str]) -> None:
        """In the child: what `python -m bilevel` does, with its output in the log."""
        code = 1
        with contextlib.suppress(BaseException):
            log = os.open(self.log, os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
            os.chdir(folder)
            os.environ.update(variables)
            warnings.resetwarnings()
            try:
                code = cli.main(arguments)
            except BaseException:
                traceback.print_exc()
        os._exit(code)

    @property
    def running(self) -> bool:
        for child in self.processes:
            if child not in self.codes and (ended := os.waitpid(child, os.WNOHANG))[0]:
                self.codes[child] = os.waitstatus_to_exitcode(ended[1])
        return len(self.codes) < len(self.processes)

    def wait_for(self, path: Path) -> float:
        """Until there is such a file, or the command has ended; the time of that."""
        while not path.exists() and self.running:
            time.sleep(0.002)
        return time.time()

    def kill(self) -> None:
        """All ranks at once."""
        for child in self.processes:
            if child not in self.codes:
                os.kill(child, signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while self.running and time.monotonic() < end:
            time.sleep(0.005)

    def finish(self) -> None:
        """Wait for success."""
        self.wait()
        still = self.running
        if still:
            self.kill()
        assert not still
        assert set(self.codes.values()) == {0}, self.log.read_text()
