"""Hyperparameter tuning: studies of trials, each an ordinary training job."""
