"""Using trained models: adapt to a few labelled images, then classify, evaluate or export."""

from pathaware.core.exports import exports

_PUBLIC = {
    "calibration": "Calibration fit_calibration",
    "export.learner": "export_learner",
    "influence": "explain suspicious_labels",
    "open_set": "unknown_images",
    "support_folder": "SupportFolder",
    "trained_model": "AdaptationStep AdaptedClassifier",
}

__getattr__, __dir__, __all__ = exports(__name__, _PUBLIC)
