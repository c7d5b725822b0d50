"""Python code of models: Python models, and hooks around models.

It runs only in the process of its version, never in the front process.
"""
