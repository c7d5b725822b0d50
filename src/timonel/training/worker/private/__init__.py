"""Every private name of TensorFlow and Keras that training leans on, and nothing else."""
