"""An S3 server on this machine that counts downloads: ``python _s3.py PORT``."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

COUNTS = "/__downloads"


class Counting:
    """Counts successful downloads of objects, and shows them below `COUNTS`."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._downloads: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ["PATH_INFO"]
        if path == COUNTS:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._downloads).encode()]
        is_object = path.count("/") > 1 and "list-type" not in environ.get("QUERY_STRING", "")

        def start(status: str, *rest: Any) -> Any:
            if environ["REQUEST_METHOD"] == "GET" and is_object and status[0] == "2":
                with self._lock:
                    # Parts of one download are different ranges.
                    self._downloads[f"{path} {environ.get('HTTP_RANGE', '')}".strip()] += 1
            return start_response(status, *rest)

        return self._app(environ, start)


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Counting(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)


if __name__ == "__main__":
    main()
