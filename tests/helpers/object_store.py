"""An S3 server on loopback (moto) behind a proxy that counts what it serves and can cut it off."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

BUCKET = "corpus"
URL = f"s3://{BUCKET}"


@dataclass
class Request:
    """One request that was served."""

    method: str
    path: str
    nbytes: int
    """Of the response's body."""
    range: str | None


@dataclass
class Store:
    """A bucket, and what has been asked of it."""

    port: int
    requests: list[Request] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)
    """Ends of paths: the response to the next GET of such a path is cut off in its middle."""
    denied: list[str] = field(default_factory=list)
    """Parts of paths and queries: such requests are refused (403)."""

    refusals: list[tuple[str, str, int, str, str]] = field(default_factory=list)
    """A method, the end of a path, and the status, code and words with which it is refused."""
    replaced: dict[str, bytes] = field(default_factory=dict)
    """End of a path -> its content from the next GET on, put there before that is answered."""

    def forget(self) -> None:
        self.requests.clear()

    def read(self, ending: str = "") -> int:
        """Bytes that were served of objects whose path ends so."""
        gets = (one for one in self.requests if one.method == "GET")
        return sum(one.nbytes for one in gets if one.path.partition("?")[0].endswith(ending))

    def put_tree(self, folder: Path, prefix: str = "") -> str:
        """Copy a folder into the bucket; gives its URL."""
        from packidx.io import storage

        url = f"{URL}/{prefix}" if prefix else URL
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                storage.write(f"{url}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        return url


@contextlib.contextmanager
def object_store(cache: Path) -> Iterator[Store]:
    """A server with one empty bucket; this process and its children find it by the environment."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it has a line for every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    store = Store(server.get_host_and_port()[1])
    _reset(store.port)
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_address[1]}",
        "AWS_ACCESS_KEY_ID": "loopback-key",
        "AWS_SECRET_ACCESS_KEY": "loopback-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PACKIDX_CACHE": str(cache),
    }
    try:
        with mock.patch.dict(os.environ, settings):
            _forget_clients()
            _create_bucket()
            yield store
    finally:
        _forget_clients()
        proxy.shutdown()
        proxy.server_close()
        server.stop()


def _reset(port: int) -> None:
    """What an earlier server of this process was given: they all have one memory."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()


def _create_bucket() -> None:
    import s3fs

    s3fs.S3FileSystem(use_listings_cache=False).mkdir(BUCKET)


def _forget_clients() -> None:
    """fsspec keeps clients, and these remember the endpoint."""
    import s3fs

    from packidx.io import cache

    s3fs.S3FileSystem.clear_instance_cache()
    cache.forget_stats()


def _handler(store: Store) -> type[BaseHTTPRequestHandler]:
    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size) if size else None
            place = self.path.partition("?")[0]
            if any(part in self.path for part in store.denied):
                self._refuse(403, "AccessDenied", "Access Denied")
                return
            for method, end, *told in store.refusals:
                if self.command == method and place.endswith(end):
                    self._refuse(*told)
                    return
            end = next((end for end in store.replaced if place.endswith(end)), None)
            if self.command == "GET" and end is not None:
                self._replace(place, store.replaced.pop(end))
            kept = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            # Closed also where the server has stopped, and a killed client's request waits in vain.
            with closing(http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)) as server:
                server.request(self.command, self.path, body, kept)
                answer = server.getresponse()
                data = answer.read()
            cut = next((end for end in store.cuts if place.endswith(end)), None)
            if self.command == "GET" and cut is not None and len(data) > 1:
                store.cuts.remove(cut)
                self._answer(answer, data, len(data) // 2)
                self.close_connection = True
                self.connection.close()
                return
            ranged = self.headers.get("Range")
            store.requests.append(Request(self.command, self.path, len(data), ranged))
            self._answer(answer, data, len(data))

        def _replace(self, place: str, content: bytes) -> None:
            signed = {k: v for k, v in self.headers.items() if k in ("Host", "Authorization")}
            with closing(http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)) as server:
                server.request("PUT", place, content, signed)
                server.getresponse().read()

        def _refuse(self, status: int, code: str, words: str) -> None:
            body = f"<Error><Code>{code}</Code><Message>{words}</Message></Error>".encode()
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _answer(self, answer: http.client.HTTPResponse, data: bytes, upto: int) -> None:
            self.send_response_only(answer.status, answer.reason)
            dropped = ("transfer-encoding", "connection", "content-length")
            for name, value in answer.getheaders():
                if name.lower() not in dropped:
                    self.send_header(name, value)
            stated = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", stated or str(len(data)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(data[:upto])
                self.wfile.flush()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

        def log_message(self, *args: Any) -> None:
            pass

    return Proxy
