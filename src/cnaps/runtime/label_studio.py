"""What Label Studio writes and reads: choices of images as JSON, and where the images lie that it speaks of."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree

from cnaps import values
from cnaps.errors import DataError, InputError, explained
from cnaps.files import parse_json, read_bytes

LARGEST = 20_000_000  # bytes of an image
_LOCAL = "/data/local-files/"
_SECONDS = 20.0
_ACCESS = 120.0  # seconds for which an access token is used; Label Studio's last for five minutes
_MOST = 200_000_000  # bytes of an export


@dataclass(frozen=True)
class Config:
    """Where the choice of a class stands in a labelling interface: names of its tags, and the choices."""

    control: str = "choice"
    image: str = "image"
    field: str = "image"  # of a task's data
    choices: tuple[str, ...] = ()  # empty: any

    @classmethod
    def parse(cls, text: Any) -> Config:
        """Of the XML of a project: one `Choices` that belongs to an `Image`."""
        with explained(InputError, "the labelling interface cannot be read", ValueError, ElementTree.ParseError):
            given = values.text(text, "the labelling interface")
            if len(given) > 1_000_000 or "<!DOCTYPE" in given or "<!ENTITY" in given:
                raise ValueError("it is too long, or has declarations")
            tree = ElementTree.fromstring(given)
        images = {tag.get("name"): tag for tag in tree.iter("Image")}
        for tag in tree.iter("Choices"):
            image = images.get(tag.get("toName"))
            if image is not None:
                choices = tuple(c.get("value") or c.get("alias") or "" for c in tag.iter("Choice"))
                field = (image.get("value") or "$image").removeprefix("$")
                return cls(tag.get("name") or "choice", image.get("name") or "image", field, choices)
        raise InputError("the labelling interface has no Choices of an Image: that is what can be learned here")

    def result(self, names: Sequence[Any], probabilities: Sequence[float]) -> dict[str, Any]:
        """The best of the choices as a prediction of Label Studio; an empty one where none of them is known."""
        known = [(p, str(name)) for name, p in zip(names, probabilities, strict=True)]
        known = [(p, name) for p, name in known if not self.choices or name in self.choices]
        if not known:
            return {"result": [], "score": 0.0}
        score, name = max(known)
        chosen = {"from_name": self.control, "to_name": self.image, "type": "choices"}
        return {"result": [{**chosen, "value": {"choices": [name]}}], "score": round(float(score), 6)}


def choice_of(annotation: Any, control: str | None = None) -> str | None:
    """The one class that an annotation chooses; None where it was skipped, or chooses none or several."""
    if not isinstance(annotation, Mapping) or annotation.get("was_cancelled"):
        return None
    found: list[Any] = []
    results = annotation.get("result")
    for part in results if isinstance(results, list) else []:
        if (
            isinstance(part, Mapping)
            and part.get("type") == "choices"
            and control in (None, part.get("from_name"))
        ):
            value = part.get("value")
            chosen = value.get("choices") if isinstance(value, Mapping) else None
            found += chosen if isinstance(chosen, list) else []
    return found[0] if len(found) == 1 and isinstance(found[0], str) and found[0].strip() else None


def read_export(path: Path, field: str = "image") -> Iterator[tuple[str, str]]:
    """The address of the image and the class of every task with a choice, of Label Studio's JSON or JSON-MIN."""
    with explained(DataError, f"{path} is no export of Label Studio as JSON", OSError, ValueError):
        tasks = values.items(parse_json(read_bytes(path, _MOST).decode("utf-8")), "it")
        for task in tasks:
            task = values.table(task, "a task")
            data = task.get("data") if isinstance(task.get("data"), Mapping) else task
            choice = task.get("choice") if isinstance(task.get("choice"), str) else None
            for annotation in values.items(task.get("annotations", []), "the annotations of a task"):
                choice = choice_of(annotation) or choice  # the latest
            address = data.get(field) if isinstance(data, Mapping) else None
            if choice and isinstance(address, str):
                yield address, choice


def local_address(path: Path, root: Path) -> str:
    """How Label Studio addresses a file below the folder that it serves local files from."""
    try:
        inside = path.resolve().relative_to(root.resolve())
    except ValueError as error:
        raise InputError(f"{path} does not lie in {root}, which Label Studio serves files from") from error
    return f"{_LOCAL}?d={quote(inside.as_posix())}"


class Addresses:
    """Images by the addresses that tasks give: in the address itself, below one folder, or on one host.

    Nothing else is ever read or asked: a task is written by whoever may add tasks, and could name any place.
    """

    def __init__(self, root: Path | None = None, host: str | None = None, token: str | None = None) -> None:
        self.root, self.host, self._token = root, (host or "").rstrip("/"), token
        self._access = -math.inf, ""  # when it was made, and the token that lasts for minutes
        if root is not None and not root.is_dir():
            raise InputError(f"there is no folder {root}")
        if self.host and not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", self.host):
            raise InputError(f"{host} is no address of a Label Studio, such as http://localhost:8080")

    def read(self, address: str) -> bytes:
        """The bytes of an image, or DataError."""
        if address.startswith("data:"):
            return _embedded(address)
        path = self.file(address)
        if path is not None:
            with explained(DataError, "an image cannot be read", OSError, ValueError):
                return read_bytes(path, LARGEST)
        if not self.host:
            raise DataError("the address of an image leads elsewhere: name the folder or the host that it lies on")
        if not address.startswith("/") and not f"{address}/".startswith(f"{self.host}/"):
            raise DataError("the address of an image is on another host than the one that was named")
        return self.ask(address.removeprefix(self.host))

    def file(self, address: str) -> Path | None:
        """The file below the folder that an address means; None where it means none."""
        parts = urlsplit(address)
        if self.root is None or parts.scheme or parts.netloc:
            return None
        name = unquote(parts.path)
        if parts.path == _LOCAL:
            name = parse_qs(parts.query).get("d", [""])[0]
        elif name.startswith("/"):
            name = name.removeprefix("/data/").lstrip("/")
        root = self.root.resolve()
        try:
            path = (root / name.lstrip("/")).resolve()
            return path if path.is_relative_to(root) and path.is_file() else None
        except (OSError, ValueError):
            return None

    def ask(self, path: str) -> bytes:
        """What the host answers for a path on it; it may not send elsewhere."""
        return self._ask(path, {"Authorization": self._authorization()} if self._token else {})

    def _authorization(self) -> str:
        """Personal access tokens, which are JWTs, are good for getting others that last for minutes."""
        assert self._token is not None
        if self._token.count(".") != 2:
            return f"Token {self._token}"
        made, access = self._access
        if time.monotonic() - made > _ACCESS:
            sent = json.dumps({"refresh": self._token}).encode()
            answer = self._ask("/api/token/refresh", {"Content-Type": "application/json"}, sent)
            try:
                access = values.text(parse_json(answer.decode("utf-8"))["access"], "the token")
            except (ValueError, LookupError, TypeError) as error:
                raise DataError("Label Studio gives no access for the token in LABEL_STUDIO_API_KEY") from error
            self._access = time.monotonic(), access
        return f"Bearer {access}"

    def _ask(self, path: str, headers: dict[str, str], sent: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.host}{path}", sent, headers)
        most = _MOST if path.startswith("/api/") else LARGEST
        try:
            with urllib.request.build_opener(_Stay).open(request, timeout=_SECONDS) as answer:
                data: bytes = answer.read(most + 1)
        except urllib.error.HTTPError as error:
            raise DataError(f"Label Studio answers {error.code} for an image or an export") from error
        except (OSError, ValueError, HTTPException) as error:
            raise DataError(f"Label Studio cannot be asked: {error}") from error
        if len(data) > most:
            raise DataError(f"Label Studio sends more than {most:,} bytes")
        return data


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nowhere: the answer with the redirection is then an error."""


def _embedded(address: str) -> bytes:
    head, _, data = address.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64") or len(data) > LARGEST * 4 // 3 + 4:
        raise DataError("an image in an address must be data:image/...;base64, and of at most 20 MB")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError("an image in an address is no base64") from error
