"""Tests of timonel.tracking.mirrors."""
