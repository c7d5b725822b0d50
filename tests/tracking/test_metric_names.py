from __future__ import annotations

import pytest

from timonel.tracking.metric_names import is_larger_better


@pytest.mark.parametrize(
    ("names", "larger"),
    [
        ("loss val_loss f1_loss mae mse val_mean_squared_error rmse logcosh perplexity", False),
        ("kullback_leibler_divergence false_positives word_error_rate wer hinge log_loss", False),
        ("binary_crossentropy mean_absolute_percentage_error error latency_ms", False),
        ("mape smape brier_score fid val_fid_score val_cer", False),
        ("acc val_accuracy top_k_categorical_accuracy auc_1 precision recall_2 f1_score", True),
        ("mean_io_u one_hot_iou cosine_similarity r2_score score reward true_positives", True),
        ("val_map mAP_50 map@0.5", True),
        ("inaccuracy valLoss eval/MeanSquaredError kld false_neg val-log-loss top1_err", False),
        ("neg_f1_score neg_accuracy", False),
        ("neg_mean_squared_error val_neg_log_loss neg_brier_score neg_rmse true_neg", True),
        ("inferred_accuracy preferred_score F1Score MeanIoU BinaryAccuracy valROCAuc acc@5", True),
        ("accuracy_drop loss_gap recall_distance interred stderr glossary_size", None),
        ("a quality samples x value lr epoch_time power confidence psnr", None),
    ],
)
def test_names_of_metrics_show_their_direction(names: str, larger: bool | None) -> None:
    assert {name: is_larger_better(name) for name in names.split()} == dict.fromkeys(
        names.split(), larger
    )
