"""Settings of the engines' tests."""

from __future__ import annotations

from hypothesis import settings

# Whether a case is slow says more of the machine's other work than of the code.
settings.register_profile("engines", deadline=None)
settings.load_profile("engines")
