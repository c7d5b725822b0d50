"""Fine-tune a trained model with simulated 8-bit integers (quantization-aware training).

The work is an ordinary job, whose program is this package: ``python -m`` runs ``__main__``.
"""
