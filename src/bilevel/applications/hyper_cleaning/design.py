"""The data matrix A of a linear model: in memory, memory-mapped or sparse, walked through in blocks of rows.

A block is small enough to stay in the processor's cache between the two products of a gradient, A V and A' R, and
what is computed from it is never larger than it: memory beyond the data does not grow with the number of rows.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidInput, InvalidType

BLOCK_BYTES = 1 << 23
"""The size of one block of rows: a few of them fit into the last cache of a processor."""


class Design(ABC):
    """The matrix A of shape (n, d), one row per example.

    Attributes
    ----------
    shape
        (n, d).
    dtype, device
        Of the products: those of A, when A is float32 or float64.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(X: Any, *, dtype: torch.dtype | None = None) -> Design:
        """A design from a tensor, a NumPy array (also memory-mapped: never copied as a whole) or a SciPy sparse matrix.

        Parameters
        ----------
        X
            Shape (n, d), numbers.
        dtype
            float32 or float64; default that of X, and float64 when X holds other numbers. An array in memory is
            converted once, a memory-mapped one block by block.

        Examples
        --------
        >>> Design.of(np.eye(3)).matmul(torch.ones(3, 1).double()).squeeze()
        tensor([1., 1., 1.], dtype=torch.float64)
        """
        if isinstance(X, Design):
            return X
        if not (hasattr(X, "shape") and hasattr(X, "dtype")):
            raise InvalidType(f"X must be a tensor, a NumPy array or a SciPy sparse matrix, got {type(X).__name__}")
        if len(X.shape) != 2 or 0 in X.shape:
            raise InvalidInput(f"X must have rows and columns, shape (n, d), got shape {tuple(X.shape)}")
        if dtype not in (None, torch.float32, torch.float64):
            raise InvalidType(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        if isinstance(X, Tensor):
            if X.layout is not torch.strided or X.is_complex():
                raise InvalidType(
                    f"X must be a real dense tensor, got {X.layout} of {X.dtype}: for sparse data use SciPy"
                )
            return DenseDesign.in_memory(X.detach(), dtype or _products_in(X.dtype))
        if hasattr(X, "tocsr"):
            return SparseDesign(X.tocsr(), dtype)
        return _of_array(X, dtype)

    @abstractmethod
    def matmul(self, V: Tensor) -> Tensor:
        """A V, shape (n, k), for V of shape (d, k)."""

    @abstractmethod
    def rmatmul(self, R: Tensor) -> Tensor:
        """A' R, shape (d, k), for R of shape (n, k)."""

    @abstractmethod
    def rows(self, index: Tensor) -> Design:
        """The design of the rows `index`, copied."""

    @abstractmethod
    def _slice(self, rows: slice) -> Design:
        """The design of neighbouring rows, not copied."""

    @abstractmethod
    def _bytes(self) -> int:
        """The size of the numbers that A holds."""

    def blocks(self) -> Iterator[tuple[slice, Design]]:
        """A cut into blocks of neighbouring rows, none of them copied."""
        n = self.shape[0]
        step = max(1, BLOCK_BYTES * n // max(self._bytes(), 1))
        if step >= n:
            yield slice(0, n), self
            return
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            yield rows, self._slice(rows)


class DenseDesign(Design):
    """A as a dense tensor, which may lie in a memory-mapped file and have a dtype other than that of the products."""

    def __init__(self, array: Tensor, dtype: torch.dtype) -> None:
        self.array, self.dtype, self.device = array, dtype, array.device
        self.shape = (array.shape[0], array.shape[1])

    @classmethod
    def in_memory(cls, array: Tensor, dtype: torch.dtype) -> DenseDesign:
        """Converted at once."""
        return cls(array.to(dtype), dtype)

    def matmul(self, V: Tensor) -> Tensor:
        if self.array.dtype == self.dtype:
            return self.array @ V
        return torch.cat([block.array.to(self.dtype) @ V for _, block in self.blocks()])  # type: ignore[attr-defined]

    def rmatmul(self, R: Tensor) -> Tensor:
        if self.array.dtype == self.dtype:
            return self.array.T @ R
        parts = (block.array.to(self.dtype).T @ R[rows] for rows, block in self.blocks())  # type: ignore[attr-defined]
        return sum(parts, start=R.new_zeros(self.shape[1], R.shape[1]))

    def rows(self, index: Tensor) -> Design:
        return DenseDesign.in_memory(self.array[index], self.dtype)

    def _slice(self, rows: slice) -> Design:
        return DenseDesign(self.array[rows], self.dtype)

    def _bytes(self) -> int:
        return self.array.numel() * self.dtype.itemsize


class SparseDesign(Design):
    """A as a SciPy matrix in compressed rows; its products run in SciPy, on the processor."""

    device = torch.device("cpu")

    def __init__(self, matrix: Any, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype or _products_in(_torch_dtype(matrix.dtype))
        self.matrix = matrix.astype(_numpy_dtype(self.dtype), copy=False)
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))

    def matmul(self, V: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix @ V.numpy())

    def rmatmul(self, R: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix.T @ R.numpy())

    def rows(self, index: Tensor) -> Design:
        return SparseDesign(self.matrix[index.numpy()])

    def _slice(self, rows: slice) -> Design:
        csr = self.matrix
        first, last = csr.indptr[rows.start], csr.indptr[rows.stop]
        parts = csr.data[first:last], csr.indices[first:last], csr.indptr[rows.start : rows.stop + 1] - first
        return SparseDesign(type(csr)(parts, shape=(rows.stop - rows.start, self.shape[1]), copy=False))

    def _bytes(self) -> int:
        return self.matrix.data.nbytes + self.matrix.indices.nbytes


def _of_array(X: Any, dtype: torch.dtype | None) -> Design:
    """A NumPy array: memory-mapped ones are kept as they are, others converted once."""
    X = np.asanyarray(X)
    if X.dtype.kind not in "fiub":
        raise InvalidType(f"X must hold numbers, got an array of dtype {X.dtype}: encode its columns first")
    mapped = isinstance(X, np.memmap)
    products = dtype or _products_in(_torch_dtype(X.dtype))
    if not X.dtype.isnative or any(stride < 0 for stride in X.strides) or not _known(X.dtype):
        X, mapped = X.astype(_numpy_dtype(products)), False  # what torch cannot view
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
        array = torch.from_numpy(np.asarray(X))
    return DenseDesign(array, products) if mapped else DenseDesign.in_memory(array, products)


def _products_in(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float64


def _known(dtype: Any) -> bool:
    """Whether torch has this dtype with arithmetic enough to be converted."""
    return dtype.kind in "fiub" and dtype.itemsize <= 8 and not (dtype.kind == "u" and dtype.itemsize > 1)


def _torch_dtype(dtype: Any) -> torch.dtype:
    return {"float32": torch.float32, "float64": torch.float64}.get(dtype.name, torch.int64)


def _numpy_dtype(dtype: torch.dtype) -> Any:
    return np.float32 if dtype == torch.float32 else np.float64
