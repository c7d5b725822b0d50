"""Package version, read by the build and by ``timonel --version``."""

__version__ = "0.1.0"
