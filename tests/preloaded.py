"""Imports what commands import inside their functions, once for all forked processes."""

from __future__ import annotations

import tensorboard.summary.writer.record_writer  # noqa: F401
import torch
import torch._dynamo  # by every optimiser

import pathaware.cli
import pathaware.data.importing
import pathaware.inference.trained_model
import pathaware.report.table_files
import pathaware.sweep.search
import pathaware.training.train  # noqa: F401
from tests.data import image_trees  # noqa: F401

torch.set_num_threads(1)
