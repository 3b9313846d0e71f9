"""TFRecord files and the ``tf.train.Example`` messages in them, read without TensorFlow.

A record is: length (8 bytes), checksum of the length (4), data, checksum of the data (4), little-endian.
Checksums are CRC-32C, rotated and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import numpy as np

from cnaps.errors import DataError

_POLYNOMIAL = 0x82F63B78
_MAX_RECORD = 1 << 30


def scan(content: memoryview | bytes, place: str) -> list[tuple[int, int]]:
    """The (offset, length) of the data of every record; only the lengths are read and checked."""
    found = []
    offset = 0
    while offset < len(content):
        if offset + 12 > len(content):
            raise DataError(f"{place} is cut short")
        length, checksum = struct.unpack_from("<QI", content, offset)
        if masked_crc(bytes(content[offset : offset + 8])) != checksum or length > _MAX_RECORD:
            raise DataError(f"{place} is damaged at byte {offset}")
        if offset + 16 + length > len(content):
            raise DataError(f"{place} is cut short")
        found.append((offset + 12, length))
        offset += 16 + length
    return found


def record(content: memoryview | bytes, offset: int, length: int) -> bytes:
    """The data of a record, checked."""
    data = bytes(content[offset : offset + length])
    if masked_crc(data) != struct.unpack_from("<I", content, offset + length)[0]:
        raise DataError(f"the record at byte {offset} is damaged (its checksum differs)")
    return data


def parse_example(data: bytes) -> dict[str, list[bytes]]:
    """The features of an Example that are bytes.

    Example.features = 1, Features.feature = 1 (a map: key = 1, value = 2), bytes_list = 1.
    """
    try:
        entries = [entry for part in _messages(data, 1) for entry in _messages(part, 1)]
        values = {_messages(entry, 1)[0].decode(): _messages(_messages(entry, 2)[0], 1) for entry in entries}
        return {key: _messages(value[0], 1) for key, value in values.items() if value}
    except (IndexError, ValueError) as error:
        raise DataError(f"a record holds no tf.train.Example: {error}") from error


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The (number, value) pairs of a protocol buffer message."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == 0:
            number, position = _varint(data, position)
            yield tag >> 3, number
            continue
        if wire == 2:
            length, position = _varint(data, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire}")
        if position + length > len(data):
            raise ValueError("it is cut short")
        yield tag >> 3, data[position : position + length]
        position += length


def _messages(data: bytes, number: int) -> list[bytes]:
    """The fields of this number that hold bytes or messages."""
    return [value for found, value in _fields(data) if found == number and isinstance(value, bytes)]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is too long")


def masked_crc(data: bytes) -> int:
    """The checksum as it is stored: CRC-32C rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli).

    The remainder is linear: the rows of a block are taken at once, each from state 0, and then joined by the
    map that carries a state over a row of zeros, found by carrying the 32 single bits along.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table, small = _table(), _table().tolist()
    rows = int(len(data) ** 0.5) if len(data) > 1024 else 0
    width = len(data) // rows if rows else 0
    head = len(data) - rows * width
    state = 0xFFFFFFFF
    for byte in data[:head]:
        state = small[(state ^ byte) & 0xFF] ^ (state >> 8)
    if rows:
        block = np.zeros((width, rows + 32), dtype=np.uint32)
        block[:, :rows] = np.frombuffer(data, np.uint8, offset=head).reshape(rows, width).T
        states = np.concatenate([np.zeros(rows, np.uint32), 1 << np.arange(32, dtype=np.uint32)])
        for column in block:
            states = table[(states ^ column) & 0xFF] ^ (states >> 8)
        carried = states[rows:].tolist()
        for row in states[:rows].tolist():
            joined = row
            while state:
                low = state & -state
                joined ^= carried[low.bit_length() - 1]
                state ^= low
            state = joined
    return state ^ 0xFFFFFFFF


@cache
def _table() -> np.ndarray:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1)
    return values
