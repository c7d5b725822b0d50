"""Asking a server over REST."""

from __future__ import annotations

import json
import urllib.error
import urllib.request


def predicted(server, model, inputs, timeout_s=30.0):
    """Return the status of a prediction, and its outputs or the error."""
    body = json.dumps({"inputs": inputs}).encode()
    try:
        with urllib.request.urlopen(
            f"{server.rest_url}/v1/models/{model}:predict", data=body, timeout=timeout_s
        ) as response:
            return response.status, json.loads(response.read())["outputs"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]
