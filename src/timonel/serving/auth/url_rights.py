"""Permissions that a URL needs. Pure.

Unknown URLs need every permission. A property test checks that the REST application reads the same
URLs in the same way.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from timonel.serving.auth.policy import Resource, Scope
from timonel.serving.settings.auth import Action

_OPEN = frozenset({"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"})
_PAGES = frozenset({"/metrics", "/monitoring/prometheus/metrics"})
STATIC = {
    "/": "index.html",
    "/page/page.css": "page.css",
    "/page/answers.js": "answers.js",
    "/page/changes.js": "changes.js",
    "/page/charts.js": "charts.js",
    "/page/dom.js": "dom.js",
    "/page/form.js": "form.js",
    "/page/icon.svg": "icon.svg",
    "/page/images.js": "images.js",
    "/page/key.js": "key.js",
    "/page/models.js": "models.js",
    "/page/outcome.js": "outcome.js",
    "/page/page.js": "page.js",
    "/page/plots.js": "plots.js",
    "/page/request.js": "request.js",
    "/page/versions.js": "versions.js",
}
"""Files of the console page, by path.

The page asks for a key, so it loads without one; its data does not.
"""
_VIEWS = frozenset({"/openapi.json", "/page/live"})
_ABOUT_MODEL = re.compile(r"/page/models/([^/]+)/\d+\Z", re.ASCII)
# As in TensorFlow Serving, the query string is part of the text and thus of a model's name.
_TARGET = r"/([^/:]+)(?:/versions/\d+|/labels/[^/:]+)?"
_COMPUTE = re.compile(rf"/v1/models{_TARGET}:(?:predict|classify|regress)\Z", re.IGNORECASE)
_READ = re.compile(rf"/v1/models{_TARGET}(/metadata)?\Z", re.IGNORECASE)
_LIST = re.compile(r"/v1/models\Z", re.IGNORECASE)
_V2_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?(?:/(\w+))?\Z")
_V2_READS = {None: Action.METADATA, "ready": Action.STATUS}
EVERYTHING_ELSE = Resource(Scope.SERVER, Action.ADMIN)


def resource_of(method: str, raw_path: str, query: str, pages: frozenset[str] = _PAGES) -> Resource:
    """Return the resource that a request is about.

    Args:
        method: The HTTP method.
        raw_path: The path, still percent-encoded.
        query: The query string.
        pages: Paths about the server as a whole, such as its metrics.
    """
    is_v1, is_v2 = raw_path[:4].lower() == "/v1/", raw_path.startswith("/v2")
    # The protocols answer OPTIONS, a preflight, without data; other applications as GET.
    if raw_path in _OPEN or (method == "OPTIONS" and (is_v1 or is_v2)):
        return Resource(Scope.OPEN)
    if is_v1:
        return _tensorflow_serving(method, f"{raw_path}?{query}" if query else raw_path)
    if is_v2:
        return _open_inference(method, raw_path)
    if method in {"GET", "HEAD", "OPTIONS"}:
        return _page(raw_path, pages)
    return EVERYTHING_ELSE


def _page(path: str, pages: frozenset[str]) -> Resource:
    if path in STATIC:
        return Resource(Scope.PUBLIC)
    if path in _VIEWS:
        return Resource(Scope.VIEW)
    if path in pages:
        return Resource(Scope.SERVER, Action.STATUS)
    found = _ABOUT_MODEL.match(path)
    return _on(Action.METADATA, found[1]) if found else EVERYTHING_ELSE


def _tensorflow_serving(method: str, target: str) -> Resource:
    if method == "POST" and (found := _COMPUTE.match(target)):
        return _on(Action.PREDICT, found[1])
    if method == "GET" and (found := _READ.match(target)):
        return _on(Action.METADATA if found[2] else Action.STATUS, found[1])
    if method == "GET" and _LIST.match(target):
        return Resource(Scope.LISTING)
    return EVERYTHING_ELSE


def _open_inference(method: str, path: str) -> Resource:
    if method == "GET" and path in {"/v2", "/v2/"}:
        return Resource(Scope.KNOWN)
    if unquote(path).count("/") != path.count("/"):
        # If a name contains a slash, parsers may disagree about where it ends.
        return EVERYTHING_ELSE
    found = _V2_MODEL.match(path)
    return _on_v2_model(method, found[1], found[2]) if found else EVERYTHING_ELSE


def _on_v2_model(method: str, name: str, verb: str | None) -> Resource:
    if method == "POST" and verb == "infer":
        return _on(Action.PREDICT, name)
    if method == "GET" and verb in _V2_READS:
        return _on(_V2_READS[verb], name)
    return EVERYTHING_ELSE


def _on(action: Action, encoded: str) -> Resource:
    return Resource(Scope.MODELS, action, (unquote(encoded),))
