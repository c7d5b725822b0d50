"""``timonel-model-server``: the flags, config files and texts of ``tensorflow_model_server``."""
