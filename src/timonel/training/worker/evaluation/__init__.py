"""Evaluation shared by evaluator and trainers: records, early stopping, validation."""
