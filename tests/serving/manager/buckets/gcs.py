"""A stand-in for Google Cloud Storage: the four calls of its JSON API that reading takes.

It holds objects in memory and answers list (prefix, delimiter, pages), metadata, and contents
with ranges, with the fields that the real one sends. It is no emulator: it checks no credentials.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

PAGE = 2


class Store:
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], tuple[bytes, int]] = {}
        self._generation = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                status, content = store.answer(self.path, self.headers.get("Range") or "")
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def put(self, bucket: str, name: str, content: bytes) -> None:
        self._generation += 1
        self.objects[bucket, name] = content, self._generation

    def answer(self, target: str, ranges: str) -> tuple[int, bytes]:
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        _, _, rest = url.path.partition("/b/")
        bucket, _, name = rest.partition("/o")
        name = unquote(name.removeprefix("/"))
        if not name:
            return 200, json.dumps(self._list(bucket, query)).encode()
        if (bucket, name) not in self.objects:
            return 404, b'{"error": {"code": 404, "message": "Not Found"}}'
        content, _ = self.objects[bucket, name]
        if query.get("alt") != "media":
            return 200, json.dumps(self._told(bucket, name)).encode()
        if not ranges:
            return 200, content
        start, _, end = ranges.removeprefix("bytes=").partition("-")
        return 206, content[int(start) : int(end) + 1 if end else None]

    def _list(self, bucket: str, query: dict[str, str]) -> dict[str, object]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], set()
        for place, name in sorted(self.objects):
            if place != bucket or not name.startswith(prefix):
                continue
            below, cut, _ = name[len(prefix) :].partition(delimiter or "\0")
            if delimiter and cut:
                prefixes.add(f"{prefix}{below}{delimiter}")
            else:
                items.append(self._told(bucket, name))
        first = int(query.get("pageToken", 0))
        page: dict[str, object] = {"kind": "storage#objects", "items": items[first : first + PAGE]}
        if first == 0:
            page["prefixes"] = sorted(prefixes)
        if len(items) > first + PAGE:
            page["nextPageToken"] = str(first + PAGE)
        return page

    def _told(self, bucket: str, name: str) -> dict[str, object]:
        content, generation = self.objects[bucket, name]
        md5 = hashlib.md5(content).digest()
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(generation),
            "size": str(len(content)),
            "md5Hash": base64.b64encode(md5).decode(),
            "crc32c": base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode(),
            "updated": "2026-01-01T00:00:00.000Z",
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "etag": f"C{generation}=",
        }
