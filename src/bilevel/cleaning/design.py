"""The data matrix A of a linear model: in memory, memory-mapped, sparse or with centred columns, in blocks of rows.

A block is small enough to stay in the processor's cache between the two products of a gradient, A V and A' R.
"""

from __future__ import annotations

import mmap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError, InvalidTypeError
from ..ranks import Ranks

BLOCK_BYTES = 1 << 23
"""The size of a block of rows in bytes: a few blocks fit into the last-level cache of a processor."""
SCATTERED = 256
"""Scattered rows of a file are read this many at a time, because the system maps many pages around each."""


class Design(ABC):
    """The matrix A of shape (n, d), one row per example.

    Attributes
    ----------
    shape
        (n, d).
    dtype, device
        The dtype and device of its products.

    Examples
    --------
    >>> import torch
    >>> design = Design.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> tuple(design.shape), design.matmul(torch.tensor([[1.0], [0.0]]))
    ((2, 2), tensor([[1.],
            [3.]]))
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(X: Any, *, dtype: torch.dtype | None = None) -> Design:
        """A design from a tensor, a NumPy array or a SciPy sparse matrix, without a copy where none is needed.

        A memory-mapped array is never copied as a whole: where its numbers need converting, that is done block by
        block, each time.

        Parameters
        ----------
        X
            Numbers of shape (n, d), or a design.
        dtype
            float32 or float64; default that of X, and for other numbers float32 if they have at most 16 bits.

        Examples
        --------
        >>> Design.of(np.eye(3)).matmul(torch.ones(3, 1).double()).squeeze()
        tensor([1., 1., 1.], dtype=torch.float64)
        """
        if isinstance(X, Design):
            return X
        if not (hasattr(X, "shape") and hasattr(X, "dtype")):
            raise InvalidTypeError(
                f"X must be a tensor, a NumPy array or a SciPy sparse matrix, got {type(X).__name__}"
            )
        if len(X.shape) != 2 or 0 in X.shape:
            raise InvalidInputError(f"X must have rows and columns, shape (n, d), got shape {tuple(X.shape)}")
        if dtype not in (None, torch.float32, torch.float64):
            raise InvalidTypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        if isinstance(X, Tensor):
            return _of_tensor(X, dtype or dtype_for(X))
        if X.dtype.kind not in "fiub":
            raise InvalidTypeError(f"X must hold numbers, got an array of dtype {X.dtype}: encode its columns first")
        dtype = dtype or dtype_for(X)
        return SparseDesign(X.tocsr(), dtype) if hasattr(X, "tocsr") else _of_array(np.asanyarray(X), dtype)

    @abstractmethod
    def matmul(self, V: Tensor) -> Tensor:
        """A V, shape (n, k), for V of shape (d, k)."""

    @abstractmethod
    def rmatmul(self, R: Tensor) -> Tensor:
        """A' R, shape (d, k), for R of shape (n, k)."""

    @abstractmethod
    def rows(self, index: Tensor) -> Design:
        """The design of the rows `index`, copied."""

    def columns(self, index: Tensor) -> Tensor:
        """The columns `index`, as a contiguous copy of shape (len(index), n)."""
        found = torch.empty(len(index), self.shape[0], dtype=self.dtype, device=self.device)
        for rows, block in self.blocks():  # of rows that lie row by row, few stay in the cache
            found[:, rows] = block._columns(index)
        return found

    def _columns(self, index: Tensor) -> Tensor:
        """The columns of a block; not necessarily a copy."""
        raise NotImplementedError

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        """A cut into blocks of neighbouring rows."""
        n = self.shape[0]
        step = max(1, BLOCK_BYTES * n // max(1, self._bytes))
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            yield rows, self._neighbours(rows)

    def _neighbours(self, rows: slice) -> Design:
        """The design of neighbouring rows."""
        raise NotImplementedError

    @property
    def _bytes(self) -> int:
        """The size in bytes of the numbers that a product reads."""
        raise NotImplementedError


class DenseDesign(Design):
    """A as a dense tensor, by rows or by columns; it may lie in a memory-mapped file."""

    def __init__(self, array: Tensor) -> None:
        self._array = array
        self.dtype: torch.dtype = array.dtype
        self.device: torch.device = array.device
        self.shape: tuple[int, int] = (array.shape[0], array.shape[1])

    # With A on the right both products are several times faster than A @ V and A.T @ R for few columns.

    def matmul(self, V: Tensor) -> Tensor:
        return (V.T @ self._array.T).T

    def rmatmul(self, R: Tensor) -> Tensor:
        return (R.T @ self._array).T

    def rows(self, index: Tensor) -> Design:
        return DenseDesign(self._array[index])

    def columns(self, index: Tensor) -> Tensor:
        return self._columns(index) if self._array.stride(0) == 1 else super().columns(index)

    def _columns(self, index: Tensor) -> Tensor:
        return self._array.T[index]

    @property
    def array(self) -> Tensor:
        """A itself."""
        return self._array

    def _neighbours(self, rows: slice) -> Design:
        return DenseDesign(self._array[rows])

    @property
    def _bytes(self) -> int:
        return self._array.numel() * self._array.itemsize


class MappedDesign(Design):
    """A as an array in a memory-mapped file or of another dtype, read and converted block by block.

    After each block its pages are released, so that a file of any size needs the memory of one block. While there is
    memory, the system caches the pages and the next pass does not read from the disk.
    """

    device: torch.device = torch.device("cpu")

    def __init__(self, array: np.ndarray, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._array = array
        self.shape: tuple[int, int] = (int(array.shape[0]), int(array.shape[1]))

    def matmul(self, V: Tensor) -> Tensor:
        return torch.cat([block.matmul(V) for _, block in self.blocks()])

    def rmatmul(self, R: Tensor) -> Tensor:
        return torch.stack([block.rmatmul(R[rows]) for rows, block in self.blocks()]).sum(0)

    def rows(self, index: Tensor) -> Design:
        parts = []
        for some in np.split(index.numpy(), range(SCATTERED, len(index), SCATTERED)):
            parts.append(self._array[some].astype(NUMPY[self.dtype]))
            give_back(self._array)
        return DenseDesign(_tensor(np.concatenate(parts)))

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        for rows, block in super().blocks():
            yield rows, block
            give_back(self._array[rows])

    def _neighbours(self, rows: slice) -> Design:
        array = self._array[rows]
        return DenseDesign(_tensor(np.asarray(array).astype(NUMPY[self.dtype], copy=not _viewable(array))))

    @property
    def _bytes(self) -> int:
        return self._array.size * self.dtype.itemsize


class PickedDesign(Design):
    """Some of the rows of a design, in increasing order and without a copy; for cases in which few rows are left out.

    Examples
    --------
    >>> design = Design.of(torch.tensor([[1.0], [2.0], [3.0]]))
    >>> PickedDesign(design, torch.tensor([0, 2])).rmatmul(torch.ones(2, 1))
    tensor([[4.]])
    """

    def __init__(self, design: Design, index: Tensor) -> None:
        self.design = design
        self.index = index
        self.shape: tuple[int, int] = (len(index), design.shape[1])
        self.dtype: torch.dtype = design.dtype
        self.device: torch.device = design.device

    def matmul(self, V: Tensor) -> Tensor:
        return self.design.matmul(V)[self.index]

    def rmatmul(self, R: Tensor) -> Tensor:
        everywhere = R.new_zeros(self.design.shape[0], R.shape[1])
        return self.design.rmatmul(everywhere.index_copy(0, self.index, R))

    def rows(self, index: Tensor) -> Design:
        return self.design.rows(self.index[index])

    def _columns(self, index: Tensor) -> Tensor:
        return self.design._columns(index)[:, self.index]

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        first = 0
        for rows, block in self.design.blocks():
            last = int(torch.searchsorted(self.index, rows.stop))
            if last > first:
                chosen = self.index[first:last] - rows.start
                yield slice(first, last), block if len(chosen) == block.shape[0] else PickedDesign(block, chosen)
            first = last


class SparseDesign(Design):
    """A as a SciPy matrix in compressed rows; its products run in SciPy, on the processor."""

    device: torch.device = torch.device("cpu")

    def __init__(self, matrix: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._matrix = matrix.astype(NUMPY[dtype], copy=False)
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))

    def matmul(self, V: Tensor) -> Tensor:
        return _SparseProduct.apply(self._matrix, V)  # type: ignore[return-value]

    def rmatmul(self, R: Tensor) -> Tensor:
        return _SparseProduct.apply(self._matrix.T, R)  # type: ignore[return-value]

    def rows(self, index: Tensor) -> Design:
        return SparseDesign(self._matrix[index.numpy()], self.dtype)

    def _columns(self, index: Tensor) -> Tensor:
        return torch.from_numpy(self._matrix[:, index.numpy()].toarray()).T

    @property
    def array(self) -> Any:
        """A itself, a SciPy matrix."""
        return self._matrix

    def _neighbours(self, rows: slice) -> Design:
        csr = self._matrix
        block = type(csr)((rows.stop - rows.start, self.shape[1]), dtype=csr.dtype)
        first, last = csr.indptr[rows.start], csr.indptr[rows.stop]
        # Views of the arrays: SciPy's slices and constructor would copy them.
        block.data, block.indices = csr.data[first:last], csr.indices[first:last]
        block.indptr = csr.indptr[rows.start : rows.stop + 1] - first
        return SparseDesign(block, self.dtype)

    @property
    def _bytes(self) -> int:
        return self._matrix.data.nbytes + self._matrix.indices.nbytes


class CentredDesign(Design):
    """B = A - 1 m' for a design A and a row m of numbers, one per column, without ever forming it.

    With an intercept, a model of the centred columns is a model of the columns themselves with another intercept: the
    weight and its set do not change, but the curvature of the lower level does. If all columns have a large mean, as
    pixels do, the direction of the mean dominates the largest curvature, and gradient steps in all other directions are
    tiny. With centred columns the same model is reached in several times fewer steps.

    Parameters
    ----------
    design
        A, of the shape (n, d). Sparse rows stay sparse: a product needs one more product with m.
    means
        m, of the shape (d,).

    Examples
    --------
    >>> design = Design.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> CentredDesign(design, column_means(design)).matmul(torch.eye(2))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    def __init__(self, design: Design, means: Tensor) -> None:
        self.design = design
        self.means = means
        self.shape: tuple[int, int] = design.shape
        self.dtype: torch.dtype = design.dtype
        self.device: torch.device = design.device

    def matmul(self, V: Tensor) -> Tensor:
        return self.design.matmul(V) - self.means @ V

    def rmatmul(self, R: Tensor) -> Tensor:
        return self.design.rmatmul(R) - torch.outer(self.means, R.sum(0))

    def rows(self, index: Tensor) -> Design:
        return CentredDesign(self.design.rows(index), self.means)

    def columns(self, index: Tensor) -> Tensor:
        return self.design.columns(index).sub_(self.means[index, None])

    def _columns(self, index: Tensor) -> Tensor:
        return self.design._columns(index) - self.means[index, None]

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        for rows, block in self.design.blocks():
            yield rows, CentredDesign(block, self.means)


def column_means(design: Design, total: int | None = None) -> Tensor:
    """The mean of each column, shape (d,); or the part of these rows in the mean over `total` rows."""
    count = design.shape[0]
    shares = torch.full((count, 1), 1.0 / (total or count), dtype=design.dtype, device=design.device)
    return design.rmatmul(shares)[:, 0]


class _SparseProduct(torch.autograd.Function):
    """V -> M V for a SciPy matrix M, differentiable any number of times: the derivative is a product with M'."""

    @staticmethod
    def forward(ctx: Any, matrix: Any, V: Tensor) -> Tensor:
        ctx.matrix = matrix
        return torch.from_numpy(matrix @ V.detach().numpy())

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, _SparseProduct.apply(ctx.matrix.T, G)  # type: ignore[return-value]


NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def dtype_for(X: Any) -> torch.dtype:
    """The dtype of products with a tensor or array."""
    is_float = X.dtype.is_floating_point if isinstance(X, Tensor) else X.dtype.kind == "f"
    return torch.float32 if X.dtype.itemsize <= (4 if is_float else 2) else torch.float64


def _of_tensor(X: Tensor, dtype: torch.dtype) -> Design:
    if X.layout is not torch.strided or X.is_complex():
        raise InvalidTypeError(
            f"X must be a dense tensor of real numbers, got {X.layout} of {X.dtype}; sparse: use SciPy"
        )
    return DenseDesign(X.detach().to(dtype))


def _of_array(X: np.ndarray, dtype: torch.dtype) -> Design:
    if mapped_file(X) is not None:
        return MappedDesign(X, dtype)
    if _viewable(X) and X.dtype == NUMPY[dtype]:
        return DenseDesign(_tensor(np.asarray(X)))
    return MappedDesign(X, dtype)._neighbours(slice(0, len(X)))


def _viewable(X: np.ndarray) -> bool:
    """Whether torch can share the array: native byte order, no negative strides."""
    return X.dtype.isnative and all(stride >= 0 and stride % X.itemsize == 0 for stride in X.strides)


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
        return torch.from_numpy(array)


def mapped_file(X: np.ndarray) -> mmap.mmap | None:
    """The file of an `np.memmap` or of a view of one."""
    shared = False
    base: Any = X
    while isinstance(base, np.ndarray):
        # Mode "c" is copied on write, and other maps may be private: given back, their pages would be lost.
        shared = shared or (isinstance(base, np.memmap) and base.mode in ("r", "r+", "w+"))
        base = base.base
    return base if shared and isinstance(base, mmap.mmap) else None


def give_back(X: np.ndarray) -> None:
    """Release the pages of an array in a memory-mapped file; they are read again when needed."""
    file = mapped_file(X)
    if file is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    low, high = np.lib.array_utils.byte_bounds(X)
    start = np.frombuffer(file, np.uint8).__array_interface__["data"][0]
    # Only whole pages: the neighbours of a block may be in use.
    first, last = -((start - low) // mmap.PAGESIZE) * mmap.PAGESIZE, (high - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        file.madvise(mmap.MADV_DONTNEED, first, last - first)


def array_blocks(X: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks of rows of an array, with the number of their first row; pages of a file are released afterwards."""
    step = max(1, BLOCK_BYTES // max(1, X[:1].nbytes))
    for start in range(0, len(X), step):
        yield start, X[start : start + step]
        give_back(X[start : start + step])


def replicated(X: Any, ranks: Ranks) -> Any:
    """The rows of all ranks below each other, on every rank: a tensor, an array or a SciPy matrix by rows."""
    if ranks.size == 1:
        return X
    if hasattr(X, "indptr"):
        data, indices, lengths = (replicated(part, ranks) for part in (X.data, X.indices, np.diff(X.indptr)))
        return type(X)((data, indices, np.append(0, np.cumsum(lengths))), shape=(len(lengths), X.shape[1]))
    part = X if isinstance(X, Tensor) else torch.tensor(X)
    counts = ranks.gather(len(part))
    whole = part.new_zeros(sum(counts), *part.shape[1:])
    whole[sum(counts[: ranks.rank]) : sum(counts[: ranks.rank + 1])] = part
    whole = ranks.sum(whole)
    return whole if isinstance(X, Tensor) else whole.numpy()


def spaced_rows(first: int, count: int, total: int, size: int) -> np.ndarray:
    """Which of the rows first, ..., first + count - 1 belong to a sample of `size` out of `total`, evenly spaced.

    Examples
    --------
    >>> spaced_rows(0, 5, 10, 4), spaced_rows(5, 5, 10, 4), spaced_rows(5, 5, 10, 100)
    (array([0, 2]), array([0, 2]), array([0, 1, 2, 3, 4]))
    """
    size = min(size, total)
    rows = np.arange(size) * total // size
    return rows[(rows >= first) & (rows < first + count)] - first
