"""Checks of this machine for ``timonel doctor``, each with a verdict."""

from timonel.cli.doctor.check import Check, Verdict
from timonel.cli.doctor.run import examine

__all__ = ["Check", "Verdict", "examine"]
