"""Serving: TensorFlow Serving's API over versions that come and go."""

from timonel.serving.launch import Server, serve

__all__ = ["Server", "serve"]
