"""`serve`: a page to browse samples, before and after a recipe, on this machine alone.

    GET /               the page: one file, which asks for the rest
    GET /api/data       the data, its classes, the recipes
    GET /api/samples    a page of samples: ?page=0&label=3&key=text; label and key are filters
    GET /api/sample     a sample and what is drawn for it: ?id=5&preset=NAME&epoch=0&seed=0
    GET /api/original   its picture: ?id=5&side=512
    GET /api/version    a view of it exactly as training gets it: ?id=5&view=0&preset=NAME&epoch=0&seed=0

With targets=1, the pictures have boxes, masks and points drawn on them, and small ones are enlarged.
An answer is JSON or a PNG; an error is {"error": message}. The server listens on 127.0.0.1 and answers only requests
that name this machine, so that a page of another site cannot reach it through its reader's browser. It opens no file
but the shards: a recipe is chosen by name from a fixed list.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property, lru_cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import numpy as np
from numpy.typing import NDArray

from gpuloader import __version__
from gpuloader.base.text import printable
from gpuloader.compose import Compose
from gpuloader.errors import BadImageError, ConfigError, GPULoaderError, kind_of
from gpuloader.loading.argument_types import AnyFields, AnyLabels, AnyPreset
from gpuloader.loading.selection import Sources
from gpuloader.plan import check_seed
from gpuloader.recipe import Recipe, load_preset, preset_names
from gpuloader.tools.overlay import draw_targets
from gpuloader.tools.sheet import Picture, enlarge
from gpuloader.tools.show import Device, Gallery

Query: TypeAlias = Mapping[str, str]
Answer: TypeAlias = "dict[str, Any] | Picture"

PER_PAGE = 24
MOST_SIDE = 1024
LEAST_SIDE = 256  # of pictures with targets: smaller ones are enlarged
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?")  # any port: a tunnel may use another one


class Api:
    """The page's requests, without HTTP: each method takes a query, and returns JSON's types or a picture.

    Args:
        gallery: the samples.
        preset: the recipe at the beginning, and its name; the library's presets can be chosen, too.
        seed: the seed at the beginning.
    """

    def __init__(self, gallery: Gallery, name: str, preset: Recipe, seed: int) -> None:
        self._gallery, self._name, self._preset, self._seed = gallery, name, preset, seed
        self._names = list(dict.fromkeys([name, *preset_names()]))
        self._composes: dict[str, Compose] = {}
        self._matching = lru_cache(maxsize=8)(self._find)

    def data(self, query: Query) -> dict[str, Any]:
        """Returns the data, its classes with their numbers of samples, and the recipes."""
        labels, counts = np.unique([] if self._labels is None else self._labels, return_counts=True)
        names = self._gallery.class_names
        return {
            "samples": len(self._gallery),
            "classes": [
                {"label": label, "name": names.get(label), "samples": count}
                for label, count in zip(labels.tolist(), counts.tolist())
            ],
            "presets": self._names,
            "seed": str(self._seed),  # JavaScript's numbers are exact only up to 2**53
            "device": self._gallery.device,
            "targets": self._gallery.has_targets,
            "version": __version__,
        }

    def samples(self, query: Query) -> dict[str, Any]:
        """Returns a page of the samples that pass the filters."""
        label = _integer(query, "label", -(2**63), 2**63) if "label" in query else None
        ids = self._matching(label, query.get("key", ""))
        page = _integer(query, "page", 0, 2**63, 0)
        shown = ids[page * PER_PAGE : (page + 1) * PER_PAGE]
        return {
            "page": page,
            "pages": max(1, -(-len(ids) // PER_PAGE)),
            "samples": len(ids),
            "shown": [_row(self._gallery, sample) for sample in shown.tolist()],
        }

    def sample(self, query: Query) -> dict[str, Any]:
        """Returns a sample, and what is drawn for it; `bad` has the cause if its image or a target cannot be used."""
        gallery, sample, compose, draws = self._gallery, self._id(query), self._compose(query), self._draws(query)
        row = {**_row(gallery, sample), "mix_left_out": compose.mix is not None, "bad": None}
        try:
            gallery.tensors(compose, sample, **draws)
            gallery.targets(compose, sample, **draws)
        except BadImageError as error:
            return {**row, "bad": error.cause}
        height, width = gallery.size(sample, compose.orientation, gallery.copy_side(compose, sample, **draws))
        views = [asdict(view) for view in gallery.explain(compose, sample, **draws)]
        left_out = gallery.targets_left_out(compose, sample)
        return {**row, "height": height, "width": width, "views": views, "targets_left_out": left_out}

    def original(self, query: Query) -> Picture:
        """Returns a sample's image, upright if the recipe turns it."""
        side = _integer(query, "side", 1, MOST_SIDE + 1, MOST_SIDE)
        whole = self._gallery.whole(self._id(query), side, self._compose(query).orientation)
        return self._pictures(whole, query, {"seed": 0, "epoch": 0})[0]

    def version(self, query: Query) -> Picture:
        """Returns a view of a sample, as training gets it."""
        compose = self._compose(query)
        view = _integer(query, "view", 0, len(compose.each_view), 0)
        return self._pictures(compose, query, self._draws(query))[view]

    def _pictures(self, compose: Compose, query: Query, draws: Mapping[str, int]) -> list[Picture]:
        sample = self._id(query)
        pictures = self._gallery.versions(compose, sample, **draws)
        if not _integer(query, "targets", 0, 2, 0):
            return pictures
        views = zip(pictures, self._gallery.targets(compose, sample, **draws), strict=True)
        return [draw_targets(picture, overlay, partial(enlarge, most=LEAST_SIDE)) for picture, overlay in views]

    @cached_property
    def _labels(self) -> NDArray[np.int64] | None:
        return self._gallery.labels()

    def _find(self, label: int | None, key: str) -> NDArray[np.int64]:
        ids = self._gallery.find(key)
        if label is None:
            return ids
        return ids[self._labels[ids] == label] if self._labels is not None else ids[:0]

    def _id(self, query: Query) -> int:
        return _integer(query, "id", 0, len(self._gallery))

    def _draws(self, query: Query) -> dict[str, int]:
        return {"seed": _integer(query, "seed", 0, 2**64, self._seed), "epoch": _integer(query, "epoch", 0, 2**32, 0)}

    def _compose(self, query: Query) -> Compose:
        name = query.get("preset", self._name)
        if name not in self._names:  # otherwise it might be a path
            raise ConfigError(f"preset={name!r}: allowed are {', '.join(self._names)}")
        if name not in self._composes:
            self._composes[name] = Compose.load(self._preset if name == self._name else load_preset(name))
        return self._composes[name]


_ANSWERS: dict[str, Callable[[Api, Query], Answer]] = {
    f"/api/{answer.__name__}": answer for answer in (Api.data, Api.samples, Api.sample, Api.original, Api.version)
}


def serve(
    tar: Sources,
    *,
    preset: AnyPreset = "imagenet_train",
    overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    label_from: AnyLabels = "default",
    device_id: Device = "auto",
    fields: AnyFields | None = None,
    port: int = 8765,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serves the page until Ctrl-C.

    Args:
        tar, preset, overrides, seed, label_from, device_id, fields: as `show` takes them.
        port: on 127.0.0.1; 0 takes a free one.
        ready: called with the page's address once it can be opened.

    Raises:
        GPULoaderError: as for `show`, or the port cannot be used.
    """
    server = make_server(
        Gallery(tar, label_from=label_from, device_id=device_id, fields=fields),
        f"{preset}{', changed' if overrides else ''}" if isinstance(preset, (str, Path)) else "a recipe",
        load_preset(preset, overrides),
        seed,
        port,
    )
    with server, suppress(KeyboardInterrupt):
        ready(f"http://127.0.0.1:{server.server_port}/")
        server.serve_forever()


def make_server(gallery: Gallery, name: str, preset: Recipe, seed: int, port: int) -> ThreadingHTTPServer:
    """Makes the server, which listens already; see `Api` for its arguments.

    Raises:
        ConfigError: the port cannot be used, or the seed is invalid.
    """
    api = Api(gallery, name, preset, check_seed(seed))
    handler = type("Handler", (_Handler,), {"api": api})
    try:
        return _Server(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"port {port} cannot be used ({error}): allowed is a free one up to 65535, or 0 for any"
        ) from None


class _Server(ThreadingHTTPServer):
    """An HTTP server with a thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the browser did not want the rest
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """The handler of GET; the base class refuses other methods."""

    api: Api
    server_version = f"gpuloader/{__version__}"

    def do_GET(self) -> None:
        if not _HOSTS.fullmatch(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.FORBIDDEN, "this page is only at http://127.0.0.1 or http://localhost")
            return
        try:
            url = urlsplit(self.path)
            if url.path == "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", PAGE)
            elif url.path not in _ANSWERS:
                self.send_error(HTTPStatus.NOT_FOUND, f"there is no page {url.path}; the page is at /")
            else:
                query = {name: values[-1] for name, values in parse_qs(url.query, max_num_fields=20).items()}
                self._answer(_ANSWERS[url.path](self.api, query))
        except (ConfigError, ValueError) as error:  # ValueError is from urlsplit and parse_qs
            self.send_error(HTTPStatus.BAD_REQUEST, str(error))
        except BadImageError as error:
            self.send_error(HTTPStatus.UNPROCESSABLE_ENTITY, f"{kind_of(error.cause)}: {error.cause}")
        except (GPULoaderError, OSError) as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        content = {"error": message or HTTPStatus(code).phrase}
        self._send(HTTPStatus(code), "application/json", json.dumps(content).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
        """Logs nothing."""

    def _answer(self, answer: Answer) -> None:
        if isinstance(answer, dict):
            self._send(HTTPStatus.OK, "application/json", json.dumps(answer).encode())
        else:
            file = io.BytesIO()
            answer.save(file, "PNG", compress_level=1)
            self._send(HTTPStatus.OK, "image/png", file.getvalue())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response_only(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


PAGE = (files("gpuloader.tools") / "show.html").read_bytes()
_SCRIPT = re.search(rb"<script>(.*?)</script>", PAGE, re.DOTALL)
assert _SCRIPT is not None
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT[1]).digest()).decode()
_HEADERS = {
    # If a key got into the page as HTML, it still could not run: only this one script may.
    "Content-Security-Policy": f"default-src 'none'; script-src 'sha256-{_HASH}'; style-src 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def _row(gallery: Gallery, sample: int) -> dict[str, Any]:
    row = asdict(gallery.sample(sample))
    return {**row, "key": printable(row["key"]), "shard": printable(row["shard"])}


def _integer(query: Query, name: str, start: int, end: int, default: int | None = None) -> int:
    text = query.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII) or not start <= int(text) < end:
        raise ConfigError(f"{name}={text!r}: allowed is an integer from {start} to {end - 1}")
    return int(text)
