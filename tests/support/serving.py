"""An HTTP server on loopback for a folder, that can be told to go wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from urllib.parse import urlsplit

ALWAYS = 10**9
SILENT_SECONDS = 120
SOON = 20
"""Seconds, however slow the machine is: far fewer than the 60 after which a request to a silent server is given up."""
ENDLESS_BYTES = 64 << 20


def wait_for(condition: Callable[[], object]) -> None:
    """Until it holds; a minute is far more than that takes."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Server:
    """Serves a folder, with ranges and entity tags, as a context.

    Attributes:
        url: that of the folder.
        ranges: "yes", or "ignored": all of a file comes whatever part is asked for, or "refused": it says so too.
        sent_bytes: of the content of each file.
        asked: how many requests of which method there were for each file.
        faults: for a method and a file, what goes wrong, and how often still:
            a status such as "500", or "503 120" with that for Retry-After; "html", a page in place of the file;
            "redirect URL"; "silent", no answer; "no length"; "long", more is announced than comes, or "drop", less
            comes than is announced, or "drop 1000", after so many bytes; "less", the answer is whole, but half of what
            was asked for; "endless", 64 MiB come behind it, of which nothing is announced; "elsewhere", another part
            comes, and is said to; "etag", the answer is said to be of another version.
        headers: what these say in each answer in place of what is true, as bytes of Latin-1; None leaves one out.
        bytes_per_second: 0 for as fast as it can.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranges = "yes"
        self.sent_bytes: Counter[str] = Counter()
        self.asked: Counter[tuple[str, str]] = Counter()
        self.faults: dict[tuple[str, str], tuple[str, int]] = {}
        self.headers: dict[str, str | None] = {}
        self.bytes_per_second = 0.0
        self.ended = Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,))

    def fault(self, name: str, kind: str, times: int = ALWAYS, method: str = "GET") -> None:
        """The next requests for a file go wrong; see `faults`."""
        self.faults[method, name] = (kind, times)

    def take_fault(self, method: str, name: str) -> str | None:
        kind, times = self.faults.get((method, name), ("", 0))
        if not times:
            return None
        self.faults[method, name] = (kind, times - 1)
        return kind

    def stop(self) -> None:
        """It answers no more."""
        if not self.ended.is_set():
            self.ended.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: Server, *arguments: object) -> None:
        self.of = server
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        name = urlsplit(self.path).path.lstrip("/")
        path = self.of.folder / name
        self.of.asked[self.command, name] += 1
        fault = self.of.take_fault(self.command, name)
        if fault and fault[0].isdigit():
            status, _, pause = fault.partition(" ")
            self.send_response(int(status))
            self.send_header("Retry-After", pause or "0")
            return self.end_headers()
        if fault == "html":
            return self.send_body(name, b"<!DOCTYPE html><html>Please log in</html>" * 50, with_body)
        if fault and fault.startswith("redirect "):  # the place, as bytes of Latin-1
            self.send_response(302)
            self.send_header("Location", fault.removeprefix("redirect "))
            return self.end_headers()
        if fault == "silent":
            self.of.ended.wait(SILENT_SECONDS)
            return None
        if not path.is_file():
            return self.send_error(404)
        data, stat = path.read_bytes(), path.stat()
        headers = {"ETag": f'"{stat.st_mtime_ns:x}"', "Last-Modified": formatdate(stat.st_mtime, usegmt=True)}
        if fault == "no length":
            self.send_response(200)
            self.end_headers()
            return None
        headers |= {"Accept-Ranges": "bytes"} if self.of.ranges == "yes" else {}
        headers |= {"Accept-Ranges": "none"} if self.of.ranges == "refused" else {}
        if fault == "etag":
            headers["ETag"] = '"another"'
        status, asked = 200, self.headers.get("Range")
        if asked and self.of.ranges == "yes":
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            if fault == "elsewhere":
                first, last = max(first - 512, 0), last - 512
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            status, data = 206, data[first : last + 1]
        data += bytes(ENDLESS_BYTES if fault == "endless" else 0)
        self.send_body(name, data, with_body, status, headers, fault)
        return None

    def send_body(
        self,
        name: str,
        data: bytes,
        with_body: bool,
        status: int = 200,
        headers: dict[str, str] | None = None,
        fault: str | None = None,
    ) -> None:
        self.send_response(status)
        for header, value in {**(headers or {}), **self.of.headers}.items():
            if value is not None:
                self.send_header(header, value)
        if fault != "endless":
            self.send_header("Content-Length", str(len(data) + (100 if fault == "long" else 0)))
        if fault == "less":  # a whole answer, but of fewer bytes than were asked for
            data = data[: len(data) // 2]
            self._headers_buffer = [
                b"Content-Length: %d\r\n" % len(data) if line.startswith(b"Content-Length") else line
                for line in self._headers_buffer
            ]
        self.end_headers()
        if not with_body:
            return
        if fault and fault.startswith("drop"):
            data = data[: int(fault.removeprefix("drop") or len(data) // 2)]
        # 20 pieces a second
        piece_bytes = max(1, min(16384, int(self.of.bytes_per_second / 20))) if self.of.bytes_per_second else 16384
        for start in range(0, len(data), piece_bytes):
            piece = data[start : start + piece_bytes]
            if self.of.bytes_per_second:
                time.sleep(len(piece) / self.of.bytes_per_second)
            self.of.sent_bytes[name] += len(piece)  # before the client has it and may ask for the count
            try:
                self.wfile.write(piece)
            except OSError:
                return
        if fault and fault.startswith("drop "):
            time.sleep(0.05)  # a client's library may lose what it has not passed on when the connection breaks
