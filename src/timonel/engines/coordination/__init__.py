"""Decisions about a job: pure state machines that any engine drives."""
