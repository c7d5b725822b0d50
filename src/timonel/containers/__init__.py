"""Container images without Docker: built in Python, pushed over the registry's HTTP API."""

from timonel.containers.build import BuiltImage, ImageSpec, build_image

__all__ = ["BuiltImage", "ImageSpec", "build_image"]
