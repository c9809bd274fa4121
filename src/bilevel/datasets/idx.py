"""IDX files: MNIST and Fashion-MNIST, images of 28 x 28 pixels in ten classes.

0, 0, type, dimensions; the sizes, big-endian 32-bit integers; the entries in C order (type 8: bytes)
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from .contents import Files, require
from .entry import Entry, RemoteFile, Rows

PIXELS, CLASSES = (28, 28), 10


def read(root: Path, *, name: str, train: int = 60_000, test: int = 10_000) -> Rows:
    """Images (rows, 28, 28) uint8 and labels 0 .. 9; files may be .gz or unpacked."""
    files = Files(root)
    parts = []
    for prefix, rows in (("train", train), ("t10k", test)):
        parts.append(_read_idx(files, name, f"{prefix}-images-idx3-ubyte", (rows, *PIXELS)))
        labels = _read_idx(files, name, f"{prefix}-labels-idx1-ubyte", (rows,))
        require(len(np.unique(labels)) == CLASSES and labels.max() == CLASSES - 1, root / name,
                f"{prefix}-labels-idx1-ubyte does not hold the labels 0 to {CLASSES - 1}")  # fmt: skip
        parts.append(labels.astype(np.int64))
    return Rows(name, *parts, sha256=files.sha256)


def _read_idx(files: Files, dataset: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    path = files.first(f"{dataset}/{name}.gz", f"{dataset}/{name}", dataset=dataset)
    header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">i4").tobytes()
    content = files.unpacked(path, limit=len(header) + math.prod(shape))
    require(content.startswith(header), path, f"does not begin as the IDX file of {shape} bytes does")
    require(len(content) == len(header) + math.prod(shape), path, f"ends after {len(content):,} bytes: it is cut off")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()  # which may be written to


MNIST = Entry(
    name="mnist",
    title="70,000 handwritten digits, 28 x 28 pixels",
    home="http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0 as commonly stated",
    citation="LeCun, Bottou, Bengio and Haffner, Proceedings of the IEEE 86 (1998) 2278-2324",
    addresses=("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    files=(
        RemoteFile("train-images-idx3-ubyte.gz",
                   "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        RemoteFile("train-labels-idx1-ubyte.gz",
                   "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        RemoteFile("t10k-images-idx3-ubyte.gz",
                   "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        RemoteFile("t10k-labels-idx1-ubyte.gz",
                   "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    ),
    read=partial(read, name="mnist"),
)  # fmt: skip

FASHION_MNIST = Entry(
    name="fashion-mnist",
    title="70,000 pictures of clothes, 28 x 28 pixels",
    home="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    citation="Xiao, Rasul and Vollgraf, arXiv:1708.07747 (2017)",
    addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    files=(
        RemoteFile("train-images-idx3-ubyte.gz",
                   "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        RemoteFile("train-labels-idx1-ubyte.gz",
                   "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        RemoteFile("t10k-images-idx3-ubyte.gz",
                   "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        RemoteFile("t10k-labels-idx1-ubyte.gz",
                   "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    ),
    read=partial(read, name="fashion-mnist"),
)  # fmt: skip
