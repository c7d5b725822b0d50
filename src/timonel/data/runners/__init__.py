"""Runners: where the shards of a conversion are written."""

from timonel.data.runners.base import RemoteRunner, Report, Runner, choose_runner

__all__ = ["RemoteRunner", "Report", "Runner", "choose_runner"]
