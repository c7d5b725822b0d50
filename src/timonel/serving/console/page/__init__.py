"""Web page at ``/``: models, traffic plots, and a form to try a model."""
