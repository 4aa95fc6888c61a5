"""The storages of a replay, each a way to write observations and one to write actions, by the names users choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from edge_sac.codec import Codec
from edge_sac.codec_byte import ActionByteCodec, RangeCodec
from edge_sac.codec_float import FloatCodec
from edge_sac.codec_round import RoundCodec
from edge_sac.errors import ReplayError
from edge_sac.replay_disk import ReplayDisk
from edge_sac.replay_header import HEADER_BYTES, Shape
from edge_sac.replay_row import RowLayout
from edge_sac.value_ranges import RangeTable

StorageName = Literal["fp16", "fp32", "just-round", "u8"]
STORAGES: tuple[str, ...] = get_args(StorageName)
# Stored types of observations and actions.
_TYPES = {"fp16": ("<f2", "<f2"), "fp32": ("<f4", "<f4"), "just-round": ("<i2", "<f2"), "u8": ("u1", "i1")}


def shape_of(capacity: int, obs_dim: int, action_dim: int, storage: str) -> Shape:
    """Return rows and bytes of a replay: `layout.row_bytes` for a transition, `map_bytes` in all.

    Raises ReplayError for a size below 1 or an unknown storage.
    """
    for name, value in (("capacity", capacity), ("obs_dim", obs_dim), ("action_dim", action_dim)):
        if value < 1:
            raise ReplayError(f"replay {name} is {value}; it must be at least 1")
    if storage not in _TYPES:
        raise ReplayError(f"replay storage is {storage!r}; it must be one of {', '.join(STORAGES)}")
    layout = RowLayout(capacity, obs_dim, action_dim, *_TYPES[storage])
    table_bytes = RangeTable.bytes_for(obs_dim) if storage == "u8" else 0
    return Shape(STORAGES.index(storage), layout, table_bytes)


def codecs(
    shape: Shape, disk: ReplayDisk, obs_names: Sequence[str], action_names: Sequence[str]
) -> tuple[Codec, Codec]:
    """Return what writes and reads observations, and actions."""
    storage = STORAGES[shape.storage]
    if storage == "u8":
        table = RangeTable(disk, HEADER_BYTES, len(obs_names))
        return RangeCodec(obs_names, table), ActionByteCodec(action_names)
    if storage == "just-round":
        return RoundCodec(obs_names), FloatCodec(action_names, "float16")
    dtype = "float32" if storage == "fp32" else "float16"
    return FloatCodec(obs_names, dtype), FloatCodec(action_names, dtype)
