"""What a model is trained on: what is known of it, and who gets which rows."""
