"""What ``timonel doctor`` looks at: checks of this machine, each with a verdict."""

from timonel.cli.doctor.check import Check, Verdict
from timonel.cli.doctor.run import examine

__all__ = ["Check", "Verdict", "examine"]
