"""Tensors whose rows are divided among ranks, in one safetensors file per rank, by torch.distributed.checkpoint.

    rank-00000-of-00002.safetensors     tensors that every rank holds; rows 0 ... n_0 - 1 of those that are divided
    rank-00001-of-00002.safetensors     rows n_0 ... n - 1

`save_rows` and `load_rows` give the library's planners a storage of ours: they find which slices of which files make up
the rows of a rank, for any number of ranks on either side. Its own storages and its way of agreeing between ranks
pickle; here every file is a document with a checksum (`bilevel.files`), and each rank reads and writes by itself.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ..errors import InvalidInput
from ..files import Damaged, save_document

FORMAT, VERSION = "bilevel.distributed.rows", 1


@dataclass(frozen=True)
class Layout:
    """Which of all rows a rank holds: `count` of `total`, after the first `first`."""

    first: int
    count: int
    total: int


class RowPart(Tensor):
    """A tensor that holds, along the dimension `dim`, the rows of a `Layout`; torch.distributed.checkpoint asks it."""

    place: Layout
    dim_of_rows: int

    @classmethod
    def of(cls, tensor: Tensor, place: Layout, dim: int) -> RowPart:
        part = tensor.as_subclass(cls)
        part.place, part.dim_of_rows = place, dim
        return part

    def size(self, dim: Any = None) -> Any:  # type: ignore[override]
        """Of the whole tensor."""
        whole = torch.Size(_with(self.shape, self.dim_of_rows, self.place.total))
        return whole if dim is None else whole[dim]

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """Where in the whole tensor this part is."""
        return ChunkStorageMetadata(torch.Size(_with([0] * self.ndim, self.dim_of_rows, self.place.first)), self.shape)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self.chunk]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.as_subclass(Tensor)

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        data = TensorWriteData(self.chunk, TensorProperties(dtype=self.dtype), self.size())
        return [WriteItem(MetadataIndex(name, self.chunk.offsets), WriteItemType.SHARD, tensor_data=data)]


def _with(sizes: Sequence[int], dim: int, value: int) -> list[int]:
    return [value if i == dim else size for i, size in enumerate(sizes)]


# --- writing ----------------------------------------------------------------------------------------------------------


def save_rows(path: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write the parts, and tensors that are whole, of one rank to one file, with a document that JSON can hold."""
    with _alone():
        save(dict(tensors), storage_writer=_Writer(path, document), planner=_ByItself(), no_dist=True)


class _ByItself(DefaultSavePlanner):
    """What one rank writes, which is not all there is."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, Metadata({})


class _Writer(StorageWriter):
    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self.path, self.document = path, document

    def write_data(self, plan: SavePlan, planner: Any) -> Future[list[WriteResult]]:
        chunks: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for item in plan.items:
            data = item.tensor_data
            if data is None:
                raise InvalidInput(f"{item.index.fqn} is no tensor")
            name = item.index.fqn
            chunks[name] = {"offsets": list(data.chunk.offsets), "size": list(data.size)}
            tensors[name] = planner.resolve_data(item).as_subclass(Tensor).detach().cpu().contiguous()
        document = {**self.document, "format": FORMAT, "version": VERSION, "chunks": chunks}
        save_document(self.path, document, tensors, too_long="the history of this run is too long for one file")
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def reset(self, checkpoint_id: Any = None) -> None: ...
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


# --- reading ----------------------------------------------------------------------------------------------------------


def read_documents(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What was written beside the tensors of each file."""
    documents = []
    for path in paths:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            document = json.loads((file.metadata() or {}).get("bilevel", "{}"))
        if document.get("format") != FORMAT or document.get("version") not in range(1, VERSION + 1):
            raise InvalidInput(f"{path}: this file holds no {FORMAT} of version {VERSION} or before")
        documents.append(document)
    return documents


def load_rows(
    paths: Sequence[Path], documents: Sequence[Mapping[str, Any]], divided: Mapping[str, int], layout: Layout
) -> dict[str, Tensor]:
    """Every tensor of these files, of those in `divided` (by name, with their dimension) the rows of `layout`."""
    reader = _Reader(paths, documents)
    found = reader.read_metadata().state_dict_metadata
    wanted: dict[str, Tensor] = {}
    for name, stored in found.items():
        assert isinstance(stored, TensorStorageMetadata)
        if sum(chunk.sizes.numel() for chunk in stored.chunks) != stored.size.numel():
            raise Damaged(f"{paths[0].parent}: the parts of the tensor {name!r} do not make up the whole")
        if name in divided and stored.size[divided[name]] != layout.total:
            raise InvalidInput(
                f"the tensor {name!r} has {stored.size[divided[name]]} rows, and here are {layout.total}"
            )
        sizes = _with(stored.size, divided[name], layout.count) if name in divided else stored.size
        empty = torch.empty(list(sizes), dtype=stored.properties.dtype)
        wanted[name] = RowPart.of(empty, layout, divided[name]) if name in divided else empty
    with _alone():
        load(wanted, storage_reader=reader, planner=DefaultLoadPlanner(), no_dist=True)
    return {name: tensor.as_subclass(Tensor) for name, tensor in wanted.items()}


class _Reader(StorageReader):
    def __init__(self, paths: Sequence[Path], documents: Sequence[Mapping[str, Any]]) -> None:
        self.paths, self.documents = paths, documents
        self._home: dict[tuple[str, tuple[int, ...]], Path] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: dict[str, Any] = {}
        for path, document in zip(self.paths, self.documents, strict=True):
            with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
                for name, chunk in document["chunks"].items():
                    part = file.get_slice(name)
                    shape, offsets = torch.Size(part.get_shape()), torch.Size(chunk["offsets"])
                    dtype = (part[tuple(slice(0, 0) for _ in shape)] if shape else file.get_tensor(name)).dtype
                    whole = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(chunk["size"]), [])
                    found.setdefault(name, whole).chunks.append(ChunkStorageMetadata(offsets, shape))
                    self._home[name, tuple(offsets)] = path
        return Metadata(found)

    def read_data(self, plan: LoadPlan, planner: Any) -> Future[None]:
        for item in plan.items:
            name, offsets = item.storage_index.fqn, tuple(item.storage_index.offset or ())
            with safe_open(self._home[name, offsets], framework="pt") as file:  # type: ignore[no-untyped-call]
                slices = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
                part = file.get_slice(name)[slices] if slices else file.get_tensor(name)
            planner.resolve_tensor(item).copy_(part)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: Any = None) -> None: ...
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


@contextmanager
def _alone() -> Any:
    """torch.distributed.checkpoint without messages between ranks, which pickle; it warns that there are none.

    Its errors are those of what failed, which it wraps.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None
