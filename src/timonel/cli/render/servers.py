"""The view of running servers."""

from __future__ import annotations

from timonel.cli.render.view import MOMENT, WORDS, Field, View

SERVER = View(
    Field("pid", column="PID"),
    Field("models", WORDS, column="MODELS"),
    Field("rest_url", column="REST"),
    Field("grpc_address", column="GRPC"),
    Field("started_at", MOMENT, lambda server: server.started, column="SINCE"),
    Field("log"),
    Field("replica", column="REPLICA"),
    wide="MODELS",
)
