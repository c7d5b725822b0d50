"""Command modules, each with an ``app``, imported when their command runs."""
