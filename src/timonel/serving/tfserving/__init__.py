"""``timonel-model-server``: flags, config files and messages of ``tensorflow_model_server``."""
