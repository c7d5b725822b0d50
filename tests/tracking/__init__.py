"""Tests of timonel.tracking."""
