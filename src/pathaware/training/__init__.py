"""Configuration, the training loop, evaluation and run folders."""

from pathaware.core.exports import exports

_PUBLIC = {
    "config": "Config",
    "evaluation": "Evaluation",
    "loop": "Fit Objective run_to_end",
    "meta_training": "MetaTraining",
    "pretrained_classifier": "PretrainedClassifier load_classifier",
    "problems": "Classification Sine",
    "run_folder": "Run",
    "settings": "AuxiliaryLosses ClassificationSettings Compute Network Pretraining Training",
    "supervised": "pretrain",
}

__getattr__, __dir__, __all__ = exports(__name__, _PUBLIC)
