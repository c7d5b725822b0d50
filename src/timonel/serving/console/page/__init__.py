"""The page at ``/``: what a server has, how it does, and a form to try a model."""
