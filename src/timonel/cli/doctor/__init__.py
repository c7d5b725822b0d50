"""Checks of this machine for ``timonel doctor``, each with a verdict."""
