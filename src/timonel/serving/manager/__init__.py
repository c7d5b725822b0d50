"""The model manager: which versions are loaded, and when."""
