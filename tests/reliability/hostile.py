"""Untrusted files: `make_all` writes them to a folder. Run with a folder, this reads them all.

    python -m tests.reliability.hostile FOLDER

Every reader of the package is given every file, under a limit of memory, with an eye on what the program does: a line
of JSON per reading says which error was raised, how long it took and which forbidden acts were seen.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from tests.reliability import mutants

ROOM = 600_000_000
"""Bytes of address space the readings may add."""
ACTS = ("os.system", "os.exec", "os.posix_spawn", "os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink",
        "os.chmod", "subprocess.Popen", "socket.connect", "pickle.find_class", "shutil.unpack_archive", "os.putenv",
        "ctypes.dlopen", "webbrowser.open", "ftplib.connect", "urllib.Request")  # fmt: skip


class Exploding:
    """Unpickled, it makes a folder."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("exploded",))


TOML = """
[tool]
run = "__import__('os').mkdir('exploded')"
"a.b"."c" = { path = "../../exploded", inf = inf, nan = nan, date = 1979-05-27T07:32:00Z }
[[solver]]
class = "os.system"
"""
ESCAPES = 'a\x1b]0;owned\x07\x1b[2J,"=cmd|\' /C calc\'!A0",<script>alert(1)</script>,../../exploded,"{{7*7}}"\n'


def make_all(folder: Path) -> list[Path]:
    """The files; ours, well made, are among them under the names solution and cleaner."""
    folder.mkdir(exist_ok=True)
    fixtures = Path(__file__).parents[1] / "fixtures"
    solution = (fixtures / "run-v1.safetensors").read_bytes()
    contents = {
        "pickle": pickle.dumps(Exploding()),
        "zip": _zip(),
        "torch": _torch(),
        "npy": _npy(),
        "exabytes": (8 << 60).to_bytes(8, "little") + b"{}" * 100,
        "negative": b"\xff" * 8 + solution[8:],
        "gigabyte-header": (99_000_000).to_bytes(8, "little") + b"{" * 1000,
        "gzip-bomb": gzip.compress(bytes(100_000_000), 9),
        "overlapping": _header({"a": [0, 8], "b": [0, 8]}),
        "outside": _header({"a": [0, 8 << 50]}),
        "toml": TOML.encode(),
        "text": b"a,b\n1,2\n",
        "nul": bytes(10_000),
        "deep-json": _document("[" * 100_000),
        "long-number": _document("9" * 200_000),
        "xml": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    }
    paths = []
    for name, content in contents.items():
        for suffix in (".safetensors", ".csv", ".parquet"):
            paths.append(folder / f"{name}{suffix}")
            paths[-1].write_bytes(content)
    paths += _tables(folder) + _signed(folder, fixtures)
    (folder / "endless.csv").symlink_to("/dev/zero")
    (folder / "endless.safetensors").symlink_to("/dev/zero")
    return [*paths, folder / "endless.csv", folder / "endless.safetensors"]


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../exploded", "text")
        archive.writestr("/tmp/exploded", "text")
    return buffer.getvalue()


def _torch() -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": torch.ones(2), "y": Exploding()}, buffer)
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Exploding()], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _header(offsets: dict[str, list[int]]) -> bytes:
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": place} for name, place in offsets.items()}
    text = json.dumps({**header, "__metadata__": {"bilevel": "{}", "sha256": "0" * 64}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


def _document(text: str) -> bytes:
    return save({"x": torch.ones(2)}, metadata={"bilevel": text, "sha256": "0" * 64})


def _tables(folder: Path) -> list[Path]:
    """Text and Parquet tables that are small on the disk and large, or hostile, in memory."""
    import pyarrow
    import pyarrow.parquet as parquet

    cells = pyarrow.array(["x" * 1_000_000])
    repeated = pyarrow.DictionaryArray.from_arrays(np.zeros(5000, dtype=np.int32), cells)
    names = ("rows.parquet", "categories.parquet", "names.csv", "escapes.csv", "field.csv", "texts.parquet")
    paths = [folder / name for name in names]
    zeros = np.broadcast_to(np.zeros(1, dtype=np.float32), (10_000_000,))  # 40 MB in memory at a time
    schema = pyarrow.schema([(f"c{i}", pyarrow.float32()) for i in range(2)])
    with parquet.ParquetWriter(paths[0], schema, compression="zstd") as writer:
        for _ in range(4):
            writer.write_table(pyarrow.table([pyarrow.array(zeros)] * 2, schema=schema))
    parquet.write_table(pyarrow.table({"a": repeated, "b": repeated}), paths[1], compression="zstd")
    paths[2].write_text(",".join(f"c{i}" for i in range(30_000)) + ",c0\n" + "1," * 30_000 + "1\n")
    paths[3].write_text(ESCAPES + "1,2,3,4,5\n" * 3 + "1,2,3\x1b[2J,4,5,6\n")
    paths[4].write_text('a,"' + "b" * 2_000_000)
    few = pyarrow.array(["x" * 1_000_000] * 20)
    with parquet.ParquetWriter(paths[5], pyarrow.schema([("a", pyarrow.string()), ("b", pyarrow.string())])) as writer:
        for _ in range(10):
            writer.write_table(pyarrow.table({"a": few, "b": few}))
    return paths


def _run(document: dict[str, Any]) -> dict[str, Any]:
    return document["value"]["content"]


def _signed(folder: Path, fixtures: Path) -> list[Path]:
    """Our own files with a changed document and a checksum that fits: what a hostile writer could make."""
    from safetensors import safe_open

    changes = {
        "run": {
            "state-class": lambda document: _run(document)["state"].update({"object": "subprocess.Popen"}),
            "solver": lambda document: _run(document)["plan"]["content"].update(
                solver="__import__('os').mkdir('exploded')"
            ),
            "solver-class": lambda document: _run(document)["plan"]["content"]["solver"].update(object="os.system"),
            "command": lambda document: _run(document).update(
                about={"dict": [["command", "os:system"], ["problem", "\x1b[2J"]]}
            ),
            "command-line": lambda document: _run(document).update(
                kind="HyperCleaner.fit", about={"dict": [["command_line", "rm -r ~"]]}
            ),
            "steps": lambda document: _run(document)["plan"]["content"].update(steps=-1),
            "order": lambda document: _run(document)["result"]["dict"][0][1].update(order=[10**9]),
        },
        "cleaner": {
            "long-labels": lambda document: document["classes"].update(dtype="<U500000000"),
            "object-labels": lambda document: document["classes"].update(dtype="S500000000"),
            "settings": lambda document: document["settings"].update(solver="__import__('os').mkdir('exploded')"),
            "loss": lambda document: document["settings"].update(loss="os.system"),
        },
    }
    paths = []
    for kind, edits in changes.items():
        source = max(fixtures.glob(f"{kind}-v*.safetensors"))
        with safe_open(source, framework="pt") as file:
            text = file.metadata()["bilevel"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, change in edits.items():
            document = json.loads(text)
            change(document)
            paths.append(folder / f"signed-{kind}-{name}.safetensors")
            mutants.save_signed(tensors, document, paths[-1])
    return paths


# --- reading them -----------------------------------------------------------------------------------------------------


def readers() -> dict[str, Any]:
    """Every function of the package that opens a file of others."""
    from bilevel import Checkpoint, Solution
    from bilevel.cleaning import load_cleaner
    from bilevel.cleaning.table_files import read_table
    from bilevel.run import resume

    return {
        "Solution.load": Solution.load,
        "Checkpoint.load": lambda path: Checkpoint(path).load(),
        "bilevel resume": lambda path: resume.resume(path),
        "load_cleaner": load_cleaner,
        "read_table": read_table,
    }


def watch() -> list[str]:
    """The forbidden acts seen from now on: a list that grows."""
    seen: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ACTS:
            seen.append(f"{event} {arguments}")
        if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wxa+"):
            seen.append(f"open {arguments}")

    sys.addaudithook(hook)
    return seen


def main(folder: Path) -> None:
    """Read everything in the folder with every reader."""
    import resource

    from bilevel import BilevelError
    from bilevel.cleaning import tables

    tables.LARGEST_TABLE = 100_000_000
    opened = readers()
    for reader in opened.values():  # what is imported when first used is imported now
        for good in sorted((Path(__file__).parents[1] / "fixtures").glob("*.safetensors")):
            with contextlib.suppress(BilevelError):
                reader(good)
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".csv", ".parquet"))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    seen = watch()
    for path in files:
        for name, reader in opened.items():
            began, error, ours = time.process_time(), "none", True
            try:
                reader(path)
            except BaseException as problem:
                error, ours = f"{type(problem).__name__}: {str(problem)[:300]}", isinstance(problem, BilevelError)
            line = {"file": path.name, "reader": name, "error": error, "ours": ours, "acts": seen[:],
                    "seconds": time.process_time() - began}  # fmt: skip
            seen.clear()
            print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
