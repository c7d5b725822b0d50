"""Tests of timonel.storage."""
