"""The data matrix: every kind gives the products of the dense one, without copies of what is mapped."""

import re
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
import torch

import bilevel
from bilevel.cleaning import CentredDesign, CleaningProblem, Design
from bilevel.cleaning.design import PickedDesign


def matrix(n=37, d=6, dtype=np.float64):
    values = np.random.default_rng(0).normal(size=(n, d))
    values[values < 0.3] = 0.0
    return values.astype(dtype)


def mapped(tmp_path, values, mode="r"):
    path = tmp_path / "rows.dat"
    values.tofile(path)
    return np.memmap(path, dtype=values.dtype, mode=mode, shape=values.shape)


def changed(array, values):
    array[:] = values
    return array


def picked(values, kind=lambda rows: rows):
    """The values, with other rows between them that are left out."""
    index = np.delete(np.arange(len(values) + 5), [0, 7, 8, 20, len(values) + 4])
    rows = np.full((len(values) + 5, values.shape[1]), 99.0, dtype=values.dtype)
    rows[index] = values
    return PickedDesign(Design.of(kind(rows)), torch.from_numpy(index))


KINDS = {
    "tensor": lambda values, tmp_path: torch.from_numpy(values),
    "array": lambda values, tmp_path: values,
    "columns first": lambda values, tmp_path: np.asfortranarray(values),
    "backwards": lambda values, tmp_path: values[::-1].copy()[::-1],
    "read only": lambda values, tmp_path: np.frombuffer(values.tobytes(), dtype=values.dtype).reshape(values.shape),
    "other byte order": lambda values, tmp_path: values.astype(values.dtype.newbyteorder()),
    "mapped": lambda values, tmp_path: mapped(tmp_path, values),
    "mapped, other byte order": lambda values, tmp_path: mapped(tmp_path, values.astype(values.dtype.newbyteorder())),
    "copied on write": lambda values, tmp_path: changed(mapped(tmp_path, np.zeros_like(values), "c"), values),
    "some rows": lambda values, tmp_path: picked(values),
    "some mapped rows": lambda values, tmp_path: picked(values, lambda rows: mapped(tmp_path, rows)),
    "CSR array": lambda values, tmp_path: scipy.sparse.csr_array(values),
    "CSC matrix": lambda values, tmp_path: scipy.sparse.csc_matrix(values),
}


SEVERAL_BLOCKS = {"n": 2600, "d": 900}
"""9 MB in float32: more than one block of rows."""


@pytest.mark.parametrize("shape", [{}, SEVERAL_BLOCKS], ids=["one block", "several blocks"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_dense_matrix(kind, dtype, shape, tmp_path):
    values = matrix(**shape, dtype=dtype)
    A = Design.of(KINDS[kind](values, tmp_path))
    dense = torch.from_numpy(values)
    assert A.shape == dense.shape
    assert A.dtype == dense.dtype
    generator = torch.Generator().manual_seed(0)
    tol = {"atol": (1e-5 if dtype is np.float32 else 1e-12) * (100 if shape else 1), "rtol": 0}
    for k in (1, 3):
        V = torch.randn(k, A.shape[1], generator=generator, dtype=A.dtype).T
        R = torch.randn(A.shape[0], k, generator=generator, dtype=A.dtype)
        assert torch.allclose(A.matmul(V), dense @ V, **tol)
        assert torch.allclose(A.rmatmul(R), dense.T @ R, **tol)
        parts = list(A.blocks())
        assert len(parts) > 1 or not shape or "CSR" in kind or "CSC" in kind
        assert torch.equal(torch.cat([torch.arange(A.shape[0])[rows] for rows, _ in parts]), torch.arange(A.shape[0]))
        assert torch.allclose(torch.cat([block.matmul(V) for _, block in parts]), dense @ V, **tol)
        assert torch.allclose(sum(block.rmatmul(R[rows]) for rows, block in parts), dense.T @ R, **tol)
        index = torch.tensor([5, 0, 36, 5])
        assert torch.allclose(A.rows(index).matmul(V), dense[index] @ V, **tol)


@pytest.mark.parametrize("shape", [{}, SEVERAL_BLOCKS], ids=["one block", "several blocks"])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_copied_one_after_the_other(kind, shape, tmp_path):
    values, index = matrix(**shape), torch.tensor([4, 0, 5])
    A = Design.of(KINDS[kind](values, tmp_path))
    means = torch.arange(A.shape[1]).double()
    for design, wanted in ((A, values), (CentredDesign(A, means), values - means.numpy())):
        columns = design.columns(index)
        assert columns.is_contiguous()
        assert torch.equal(columns, torch.from_numpy(wanted[:, index].T.copy()))
    columns.zero_()
    assert torch.allclose(A.columns(index), torch.from_numpy(values[:, index].T.copy()))  # it was a copy


def test_derivatives_in_a_sparse_vector_are_whole():
    values = np.asfortranarray(np.random.default_rng(0).normal(size=(50, 40)))
    V = torch.zeros(40, 1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(Design.of(values).matmul(V).sum(), V)
    assert torch.allclose(slope[:, 0], torch.from_numpy(values.sum(0)))


@pytest.mark.parametrize("kind", ["tensor", "array", "columns first", "read only", "mapped"])
def test_nothing_is_copied_that_torch_can_take_as_it_is(kind, tmp_path):
    X = KINDS[kind](matrix(), tmp_path)
    A = Design.of(X)
    address = X.data_ptr() if isinstance(X, torch.Tensor) else X.__array_interface__["data"][0]
    assert next(iter(A.blocks()))[1].array.data_ptr() == address


@pytest.mark.skipif(sys.platform != "linux", reason="the system says there what is resident")
def test_pages_of_a_mapped_file_are_given_back_after_each_block(tmp_path):
    """A pass over 64 MB takes the memory of a few blocks."""
    rows = mapped(tmp_path, np.ones((80_000, 100)))

    def resident():
        with open("/proc/self/smaps") as file:
            text = file.read()
        part = text[text.index("rows.dat") :]
        return int(re.search(r"Rss:\s+(\d+) kB", part).group(1))

    largest = 0
    for _, block in Design.of(rows).blocks():
        assert float(block.matmul(torch.ones(100, 1).double()).sum()) == 100 * block.shape[0]
        largest = max(largest, resident())
    assert largest < 30_000  # kB: a block, and what the system maps around it
    assert rows.sum() == 8e6


def test_blocks_of_a_sparse_matrix_are_no_copies():
    """Blocks of 30 MB in compressed rows: walking through them takes less than a tenth of that."""
    X = scipy.sparse.csr_array(np.ones((2600, 900)))
    A, ones = Design.of(X), torch.ones(900, 1).double()
    tracemalloc.start()
    sums = torch.cat([block.matmul(ones) for _, block in A.blocks()])
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert torch.equal(sums, torch.full((2600, 1), 900.0).double())
    assert taken < X.data.nbytes / 10


@pytest.mark.parametrize(
    ("stored", "products"),
    [
        (np.uint8, torch.float32), (np.int16, torch.float32), (np.uint16, torch.float32), (np.float16, torch.float32),
        (np.bool_, torch.float32), (np.int32, torch.float64), (np.int64, torch.float64),
    ],
)  # fmt: skip
def test_other_numbers_are_converted_a_mapped_file_block_by_block(stored, products, tmp_path):
    values = (10 * matrix()).astype(stored)
    expected = torch.from_numpy(values.astype(np.float64)).sum(1)
    sparse = [] if stored is np.float16 else [scipy.sparse.csr_array(values)]  # SciPy has no half floats
    for X in (values, mapped(tmp_path, values), *sparse):
        A = Design.of(X)
        assert A.dtype == products
        assert torch.allclose(A.matmul(torch.ones(6, 1, dtype=products)).squeeze(1).double(), expected)
    assert Design.of(values, dtype=torch.float64).dtype == torch.float64
    A = Design.of(mapped(tmp_path, np.tile(values, (500, 150))))
    sizes = [block.array.nbytes for _, block in A.blocks()]
    assert len(sizes) > 5
    assert max(sizes) <= 1 << 23


@pytest.mark.parametrize("kind", ["array", "mapped", "mapped, other byte order", "CSR array"])
@pytest.mark.parametrize("noise", ["rows", "class-pairs", "transition"])
def test_problems_on_every_kind_of_data_agree(kind, noise, tmp_path):
    values, labels = matrix(n=40, d=30_000), np.arange(40) % 3  # in two blocks
    (tmp_path / "trusted").mkdir()
    ours = CleaningProblem(
        KINDS[kind](values, tmp_path), labels, KINDS[kind](values[:9], tmp_path / "trusted"), labels[:9], noise=noise,
        evidence_weight=0.1, trusted_in_lower=0.2,
    )  # fmt: skip
    weights = {"evidence_weight": 0.1, "trusted_in_lower": 0.2}
    dense = CleaningProblem(values, labels, values[:9], labels[:9], noise=noise, **weights)
    twin = bilevel.Problem(ours.upper, ours.lower, ours.constraint, y0=ours.y0)  # through autograd
    x, y = ours.start(), {name: torch.full_like(entry, 1e-5) for name, entry in ours.y0.items()}
    v = {name: torch.linspace(-1, 1, entry.numel()).double().reshape(entry.shape) for name, entry in y.items()}
    found = [derivatives(problem.linearize(x, y), v) for problem in (ours, dense, twin)]
    for name, wanted in found[0].items():
        assert torch.allclose(wanted, found[1][name], atol=1e-9), name
        assert torch.allclose(wanted, found[2][name], atol=1e-9), name
    solutions = [
        bilevel.minimize(problem, x, steps=2, solver=bilevel.DMLCBO(upper_step=0.1)) for problem in (ours, dense)
    ]
    assert torch.allclose(solutions[0].x, solutions[1].x, atol=1e-9)
    assert torch.allclose(solutions[0].y["weight"], solutions[1].y["weight"], atol=1e-9)


def derivatives(lin, v):
    """All that a linearisation says, by name."""
    found = {
        "f": lin.upper_value, "g": lin.lower_value, "grad_x f": lin.upper_grad_x, "grad_x g": lin.lower_grad_x,
        "grad_y f": lin.upper_grad_y, "grad_y g": lin.lower_grad_y, "hvp": lin.lower_hvp(v),
        "cross": lin.lower_cross(v),
    }  # fmt: skip
    return {
        f"{name} {entry}": value
        for name, part in found.items()
        for entry, value in (part if isinstance(part, dict) else {"": part}).items()
    }


@pytest.mark.parametrize("kind", ["array", "mapped", "CSR array"])
def test_batches_of_every_kind_of_data(kind, tmp_path):
    values, labels = matrix(), np.arange(37) % 2
    problem = CleaningProblem(KINDS[kind](values, tmp_path), labels, values[:9], labels[:9], batch_size=5)
    dense = CleaningProblem(values, labels, values[:9], labels[:9], batch_size=5)
    x, batch = problem.start(), problem.sampler(torch.Generator().manual_seed(0))
    y = {"weight": torch.full((1, 6), 0.1).double(), "bias": torch.ones(1).double()}
    ours, theirs = problem.lower_grad(x, y, batch), dense.lower_grad(x, y, batch)
    assert torch.allclose(ours["weight"], theirs["weight"], atol=1e-12)


def test_refusals_name_what_is_wrong():
    with pytest.raises(
        bilevel.InvalidTypeError, match="X must be a tensor, a NumPy array or a SciPy sparse matrix, got list"
    ):
        Design.of([[1.0]])
    with pytest.raises(bilevel.InvalidInputError, match=r"shape \(n, d\), got shape \(3,\)"):
        Design.of(np.zeros(3))
    with pytest.raises(bilevel.InvalidInputError, match=r"got shape \(0, 3\)"):
        Design.of(np.zeros((0, 3)))
    with pytest.raises(bilevel.InvalidTypeError, match="X must hold numbers, got an array of dtype object"):
        Design.of(np.array([["a"]], dtype=object))
    with pytest.raises(
        bilevel.InvalidTypeError, match="dtype must be torch.float32 or torch.float64, got torch.float16"
    ):
        Design.of(np.zeros((2, 2)), dtype=torch.float16)
    with pytest.raises(
        bilevel.InvalidTypeError, match="X must be a dense tensor of real numbers, got torch.sparse_coo"
    ):
        Design.of(torch.eye(2).to_sparse_coo())
