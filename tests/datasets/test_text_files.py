"""cod-rna (LIBSVM text) and madelon (columns of integers)."""

import bz2

import numpy as np
import pytest

from bilevel.datasets.text_files import read_cod_rna, read_madelon
from bilevel.errors import CorruptFileError


def libsvm_text(X, y):
    rows = (" ".join(f"{i}:{value!r}" for i, value in enumerate(row.tolist(), 1)) for row in X)
    return "".join(f"{label} {row}\n" for label, row in zip(y, rows, strict=True)).encode()


@pytest.fixture
def rna(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "cod-rna").mkdir()
    parts = {name: (rng.normal(size=(n, 8)).round(6), np.resize([-1, 1], n)) for name, n in
             (("cod-rna", 6), ("cod-rna.t", 4))}  # fmt: skip
    for name, (X, y) in parts.items():
        (tmp_path / "cod-rna" / name).write_bytes(libsvm_text(X, y))
    return tmp_path, parts


def test_cod_rna_comes_back_plain_and_packed(rna):
    folder, parts = rna
    for suffix in ("", ".bz2"):
        data = read_cod_rna(folder, train=6, test=4)
        for found, expected in zip((data.X, data.y, data.test_X, data.test_y), sum(parts.values(), ()), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert set(data.sha256) == {f"cod-rna/{name}{suffix}" for name in parts}
        for file in list((folder / "cod-rna").iterdir()):
            file.with_name(file.name + ".bz2").write_bytes(bz2.compress(file.read_bytes()))
            file.unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: len(text) // 2], "rows instead of 6|no LIBSVM text"),
        (lambda text: text + b"1 1:1\n", "7 rows instead of 6"),
        (lambda text: text.replace(b"-1 ", b"3 ", 1), "labels -1 and 1"),
        (lambda text: text.replace(b" 8:", b" 9:", 1), "no LIBSVM text with 8 columns"),
        (lambda text: text.replace(b" 8:", b" 9999999999999999999999:", 1), "no LIBSVM text with 8 columns"),
        (lambda text: text.replace(b" 3:", b" 3:nan #", 1), "not finite|no LIBSVM"),
        (lambda text: b"<html>\n" + text, "no LIBSVM text"),
        (lambda text: b"1" * 5_000, "more than the 720 bytes"),
    ],
    ids=["half", "one more", "label", "column", "far column", "nan", "web page", "long"],
)
def test_wrong_cod_rna_is_named(rna, change, reason):
    folder, _ = rna
    file = folder / "cod-rna" / "cod-rna"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CorruptFileError, match=rf"cod-rna/cod-rna: the file .*({reason})"):
        read_cod_rna(folder, train=6, test=4)


@pytest.fixture
def artificial(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "madelon").mkdir()
    parts = []
    for name, n in (("train", 6), ("valid", 4)):
        X, y = rng.integers(0, 1000, (n, 500)), np.resize([-1, 1], n)
        lines = (" ".join(map(str, row)) + " \n" for row in X.tolist())  # the official rows end in a blank
        (tmp_path / "madelon" / f"madelon_{name}.data").write_text("".join(lines))
        (tmp_path / "madelon" / f"madelon_{name}.labels").write_text("".join(f"{label}\n" for label in y))
        parts += [X, y]
    return tmp_path, parts


def test_madelon_comes_back(artificial):
    folder, parts = artificial
    data = read_madelon(folder, train=6, valid=4)
    for found, expected in zip((data.X, data.y, data.test_X, data.test_y), parts, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("train.data", lambda text: text[: len(text) // 2], "integers in columns|numbers instead"),
        ("train.data", lambda text: text.replace("\n", " 7\n"), r"\(6, 501\) numbers instead of \(6, 500\)"),
        ("train.data", lambda text: "1000" + text[text.index(" ") :], "outside 0 .. 999"),
        ("train.data", lambda text: "x" + text[1:], "integers in columns"),
        ("train.data", lambda text: text * 2, "more than the 15,006 bytes|numbers instead"),
        ("valid.labels", lambda text: text.replace("-1", "0", 1), "labels -1 and 1"),
    ],
)
def test_wrong_madelon_is_named(artificial, file, change, reason):
    folder, _ = artificial
    path = folder / "madelon" / f"madelon_{file}"
    path.write_text(change(path.read_text()))
    with pytest.raises(CorruptFileError, match=rf"madelon_{file}: the file .*({reason})"):
        read_madelon(folder, train=6, valid=4)
