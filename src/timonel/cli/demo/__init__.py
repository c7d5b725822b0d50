"""The demo: the whole path on real digits, by the very commands a user would type."""

from timonel.cli.demo.story import tell

__all__ = ["tell"]
