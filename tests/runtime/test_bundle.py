"""What a bundle's graphs may hold: files from elsewhere neither run for ever nor read other files."""

from __future__ import annotations

import numpy as np
import pytest

from cnaps.errors import CheckpointError
from cnaps.runtime.onnx import Graph, _block, _tensor, _text, check_graph, node, write_model


def test_a_plain_graph_is_taken() -> None:
    check_graph(write_model(Graph(node("Relu", ["x"], ["y"])), {"w": np.ones(2, np.float32)}), "it")


@pytest.mark.parametrize("kind", ["Loop", "Scan", "If", "SequenceMap"])
def test_an_operation_that_may_not_end_is_refused(kind: str) -> None:
    with pytest.raises(CheckpointError, match="it holds an operation that no model of cnaps has"):
        check_graph(write_model(Graph(node(kind, ["x"], ["y"])), {}), "it")


def test_an_operation_of_another_library_is_refused() -> None:
    foreign = _block(1, _text(1, "x") + _text(2, "y") + _text(4, "Relu") + _text(7, "com.example"))
    with pytest.raises(CheckpointError, match="no model of cnaps has"):
        check_graph(write_model(Graph(foreign), {}), "it")


@pytest.mark.parametrize("place", ["tensor", "constant"])
def test_numbers_from_another_file_are_refused(place: str) -> None:
    elsewhere = _block(13, _text(1, "location") + _text(2, "/etc/passwd"))
    outside = b"".join(_tensor(np.ones(1, np.float32), "w")) + elsewhere
    graph = Graph(node("Relu", ["x"], ["y"]), _block(5, outside))
    if place == "constant":
        graph = Graph(
            _block(1, _text(2, "w") + _text(4, "Constant") + _block(5, _text(1, "value") + _block(5, outside)))
        )
    with pytest.raises(CheckpointError, match="it refers to other files"):
        check_graph(write_model(graph, {}), "it")


def test_what_is_no_onnx_file_is_refused() -> None:
    with pytest.raises(CheckpointError, match="damaged or no ONNX file"):
        check_graph(b"\xff" * 20, "it")
