"""Demo of the whole path, with the commands a user would type."""

from timonel.cli.demo.story import tell

__all__ = ["tell"]
