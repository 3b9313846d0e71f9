"""ONNX files read and written without the onnx package: a graph is nodes, tensors, inputs and outputs.

A protobuf message is a row of fields, and a repeated field may stand anywhere in it. So graphs are joined by
putting their nodes one behind the other, and get their weights by adding tensors: nothing has to be understood
beyond the fields of this file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cnaps.errors import CheckpointError

OPSET, IR_VERSION = 20, 10
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int64): 7, np.dtype(np.float64): 11}
_NODE, _TENSOR, _INPUT, _OUTPUT = 1, 5, 11, 12  # fields of a graph


_LOOPS = {b"If", b"Loop", b"Scan", b"SequenceMap"}


@dataclass(frozen=True)
class Graph:
    """Nodes as they stand in a file, tensors that are part of the graph, and what goes in and out."""

    nodes: bytes  # one or more fields, ready to be written
    tensors: bytes = b""
    ports: bytes = b""  # inputs and outputs

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names that its operations read: of weights, inputs and what other operations give."""
        operations = (_fields(value) for _, value in _fields(self.nodes))
        return frozenset(
            value.decode(errors="replace") for parts in operations for number, value in parts if number == 1
        )


@dataclass(frozen=True)
class Port:
    """An input or output: its name, the kind of its numbers, and its shape, where a name stands for any size."""

    name: str
    shape: Sequence[int | str]
    kind: type[np.generic] = np.float32


def read_graph(data: bytes, source: str) -> Graph:
    """The graph in the bytes of an ONNX file."""
    try:
        graph = next(value for number, value in _fields(data) if number == 7)
        parts = list(_fields(graph))
    except (StopIteration, IndexError, ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{source} is damaged or no ONNX file") from error

    def rows(*kinds: int) -> bytes:
        return b"".join(_block(number, value) for number, value in parts if number in kinds)

    return Graph(rows(_NODE), rows(_TENSOR), rows(_INPUT, _OUTPUT))


def check_graph(data: bytes, source: str) -> None:
    """Refuse what a network of ours never holds: loops, which may not end, and numbers from other files.

    All other operations of the ONNX standard compute from what they are given and end.
    """
    graph = read_graph(data, source)
    try:
        tensors = [value for _, value in _fields(graph.tensors)]
        for _, operation in _fields(graph.nodes):
            parts = list(_fields(operation))
            kinds = {value for number, value in parts if number == 4}
            if kinds & _LOOPS or any(value for number, value in parts if number == 7):
                raise CheckpointError(f"{source} holds an operation that no model of cnaps has")
            attributes = [dict(_fields(value)) for number, value in parts if number == 5]
            tensors += [attribute[5] for attribute in attributes if 5 in attribute]
        if any(number == 13 for tensor in tensors for number, _ in _fields(tensor)):
            raise CheckpointError(f"{source} refers to other files")
    except CheckpointError:
        raise
    except (IndexError, ValueError) as error:
        raise CheckpointError(f"{source} is damaged or no ONNX file") from error


def read_metadata(data: bytes) -> dict[str, str]:
    """What an ONNX file says of itself."""
    entries = [dict(_fields(value)) for number, value in _fields(data) if number == 14]
    return {entry.get(1, b"").decode(): entry.get(2, b"").decode() for entry in entries}


def write_model(
    graph: Graph,
    tensors: Mapping[str, np.ndarray],
    inputs: Sequence[Port] = (),
    outputs: Sequence[Port] = (),
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """An ONNX file of a graph with its weights; inputs and outputs beside those that the graph names itself."""
    body: list[bytes | memoryview] = [graph.nodes, _text(2, "cnaps"), graph.tensors, graph.ports]
    for name, value in tensors.items():
        head, numbers = _tensor(value, name)
        body += [_opening(_TENSOR, len(head) + len(numbers)), head, numbers]
    body += [_block(_INPUT, _port(port)) for port in inputs] + [_block(_OUTPUT, _port(port)) for port in outputs]
    start = [_number(1, IR_VERSION), _text(2, "cnaps"), _block(8, _text(1, "") + _number(2, OPSET))]
    about = [_block(14, _text(1, key) + _text(2, value)) for key, value in (metadata or {}).items()]
    return b"".join([*start, _opening(7, sum(map(len, body))), *body, *about])


def node(
    kind: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    **attributes: int | float | str | Sequence[int],
) -> bytes:
    """One operation."""
    parts = [_text(1, name) for name in inputs] + [_text(2, name) for name in outputs] + [_text(4, kind)]
    return _block(_NODE, b"".join([*parts, *(_block(5, _attribute(k, v)) for k, v in attributes.items())]))


def _attribute(name: str, value: int | float | str | Sequence[int]) -> bytes:
    if isinstance(value, str):
        return _text(1, name) + _text(4, value) + _number(20, 3)
    if isinstance(value, float):
        return _text(1, name) + _key(2, 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, 2)
    return _text(1, name) + b"".join(_number(8, item) for item in value) + _number(20, 7)


def _tensor(value: np.ndarray, name: str) -> tuple[bytes, memoryview]:
    """A tensor of a graph in two parts, so that its numbers are copied once: into the file."""
    numbers = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    dims = b"".join(_number(1, n) for n in value.shape)
    return dims + _number(2, _TYPES[value.dtype]) + _text(8, name) + _opening(9, len(numbers)), numbers


def _port(port: Port) -> bytes:
    sizes = (_text(2, n) if isinstance(n, str) else _number(1, n) for n in port.shape)
    shape = _block(2, b"".join(_block(1, size) for size in sizes))
    return _text(1, port.name) + _block(2, _block(1, _number(1, _TYPES[np.dtype(port.kind)]) + shape))


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value & (1 << 64) - 1)


def _text(number: int, value: str) -> bytes:
    return _block(number, value.encode())


def _block(number: int, value: bytes) -> bytes:
    return _opening(number, len(value)) + value


def _opening(number: int, size: int) -> bytes:
    """What stands before a field of so many bytes."""
    return _key(number, 2) + _varint(size)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of the fields of a message; plain numbers are passed over."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        wire = key & 7
        if wire == 0:
            _, place = _read_varint(data, place)
        elif wire in (1, 5):
            place += 8 if wire == 1 else 4
        elif wire == 2:
            size, place = _read_varint(data, place)
            if place + size > len(data):
                raise ValueError("a field leads beyond the end")
            yield key >> 3, data[place : place + size]
            place += size
        else:
            raise ValueError(f"a field of kind {wire}")


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("a number without end")
