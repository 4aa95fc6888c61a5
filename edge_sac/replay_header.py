"""The first page of a replay: what shape the rows have, and the index of what is known to be on the disk.

The index is two records in sectors of their own, written in turn, each with a count and a check: whatever a power cut
does to the one being written, the other is whole, and what it says was on the disk before it was written.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from edge_sac.errors import Refused
from edge_sac.replay_row import RowLayout

MAGIC = b"ESACRPLY"
SCHEMA = 2
HEADER_BYTES = 4096
# Magic, schema, storage, observations, actions, bytes per row, bytes of the range table, capacity.
_SHAPE = struct.Struct("<8s6IQ")
_CRC = struct.Struct("<I")
SHAPE_BYTES = _SHAPE.size + _CRC.size
# Turn, rows written, transitions added.
_INDEX = struct.Struct("<QQQ")
_SECTOR = 512


@dataclass(frozen=True)
class Shape:
    """Everything that must agree between a file and whoever opens it."""

    storage: int
    """The storage's number."""
    layout: RowLayout
    table_bytes: int

    @property
    def rows_at(self) -> int:
        return HEADER_BYTES + self.table_bytes

    @property
    def map_bytes(self) -> int:
        return self.rows_at + self.layout.slots * self.layout.row_bytes

    def pack(self) -> bytes:
        """Return the shape as the header holds it, with its check."""
        row = self.layout
        shape = _SHAPE.pack(
            MAGIC, SCHEMA, self.storage, row.obs_dim, row.action_dim, row.row_bytes, self.table_bytes, row.capacity
        )
        return shape + _CRC.pack(zlib.crc32(shape))


@dataclass(frozen=True)
class Index:
    """What was on the disk when this was written: rows ever written, and transitions ever added."""

    turn: int = 0
    written: int = 0
    added: int = 0

    @property
    def at(self) -> int:
        """Where this record lies in the header."""
        return _SECTOR * (1 + self.turn % 2)

    def pack(self) -> bytes:
        record = _INDEX.pack(self.turn, self.written, self.added)
        return record + _CRC.pack(zlib.crc32(record))


def new_header(shape: Shape) -> bytes:
    """Return the header of a replay that holds nothing."""
    header = bytearray(HEADER_BYTES)
    header[:SHAPE_BYTES] = shape.pack()
    index = Index()
    record = index.pack()
    header[index.at : index.at + len(record)] = record
    return bytes(header)


def check_shape(header: bytes, size: int, shape: Shape, storages: tuple[str, ...], path: Path | None) -> None:
    """Raise Refused unless a file of `size` bytes that begins with `header` holds exactly this shape."""
    if len(header) < SHAPE_BYTES or not header.startswith(MAGIC):
        raise Refused(f"{path}: not a replay file (it begins with {header[:8]!r}, expected {MAGIC!r})")
    packed, crc = header[: _SHAPE.size], header[_SHAPE.size : SHAPE_BYTES]
    if _CRC.unpack(crc)[0] != zlib.crc32(packed):
        raise Refused(f"{path}: the header is damaged; delete the file to go on with an empty replay")
    _, schema, storage, obs_dim, action_dim, row_bytes, table_bytes, capacity = _SHAPE.unpack(packed)
    if schema != SCHEMA:
        raise Refused(
            f"{path}: a replay of schema {schema}, written by another version of edge-sac; this one reads schema "
            f"{SCHEMA}: start a new run"
        )
    row = shape.layout
    named = dict(enumerate(storages))
    pairs = (
        ("storage", named.get(storage, storage), named[shape.storage]),
        ("observations", obs_dim, row.obs_dim),
        ("actions", action_dim, row.action_dim),
        ("capacity", capacity, row.capacity),
        ("bytes per row", row_bytes, row.row_bytes),
        ("bytes of ranges", table_bytes, shape.table_bytes),
    )
    wrong = [f"{name} {held} (asked for {asked})" for name, held, asked in pairs if held != asked]
    if wrong:
        raise Refused(f"{path}: holds a replay with {', '.join(wrong)}; ask for what it has, or start a new run")
    if size != shape.map_bytes:
        raise Refused(
            f"{path}: {size} bytes long, {shape.map_bytes} expected; it was cut short or added to: "
            "delete it to go on with an empty replay"
        )


def newest_index(header: bytes, path: Path | None) -> Index:
    """Return the newer of the two records that are whole. Raises Refused when none is, or it cannot be."""
    found = []
    for turn in (0, 1):
        at = Index(turn).at
        record, crc = header[at : at + _INDEX.size], header[at + _INDEX.size : at + _INDEX.size + _CRC.size]
        if _CRC.unpack(crc)[0] == zlib.crc32(record):
            index = Index(*_INDEX.unpack(record))
            if index.turn % 2 == turn:
                found.append(index)
    if not found:
        raise Refused(f"{path}: both records of the index are damaged; delete the file to go on with an empty replay")
    newest = max(found, key=lambda index: index.turn)
    if newest.added > newest.written:
        raise Refused(
            f"{path}: the index counts {newest.written} rows and {newest.added} transitions: no run can leave that; "
            "delete the damaged file to go on with an empty replay"
        )
    return newest
