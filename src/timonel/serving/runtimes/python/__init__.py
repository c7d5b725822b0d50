"""Python that belongs to a model: classes that are models, and hooks around models.

It runs in the process of that version alone, never in the front.
"""
