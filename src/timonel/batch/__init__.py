"""Batch prediction: files in, a file of predictions out, without a server."""

from timonel.batch.prediction import BatchPrediction, predict_batch

__all__ = ["BatchPrediction", "predict_batch"]
