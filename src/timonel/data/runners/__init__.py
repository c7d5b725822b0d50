"""Runners: where the shards of a conversion are written."""

from timonel.data.runners.base import Report, Runner, choose_runner

__all__ = ["Report", "Runner", "choose_runner"]
