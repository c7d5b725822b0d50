"""Asking a server over REST."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import psutil


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


def server_process(server):
    """Return the process that computes: a child of its parent, or of a zygote."""
    port = int(server.rest_url.rpartition(":")[2])
    (pid,) = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.laddr.port == port and each.status == psutil.CONN_LISTEN
    }
    return psutil.Process(pid)
