"""Web page at ``/``: models, traffic plots and a request form."""
