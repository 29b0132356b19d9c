"""Meta-training in Lightning's Trainer.

pip install lightning
"""

import lightning
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import pathaware
from pathaware.data import SineWaves
from pathaware.models import mlp

ITERATIONS = 500


class MetaTraining(lightning.LightningModule):
    """Any learner of pathaware; `meta_loss` has the gradient of its method."""

    def __init__(self):
        super().__init__()
        self.learner = pathaware.pamela(mlp(), mse_loss)

    def training_step(self, batch, index):
        self.learner.progress(self.global_step / ITERATIONS)  # for methods with a schedule
        return self.learner.meta_loss(pathaware.Episodes(*batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.learner.parameters(), lr=2e-3)


torch.manual_seed(0)
tasks = SineWaves(shots=10).sample(25 * ITERATIONS, torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(*tasks.tensors()), batch_size=25)  # each item is a task
training = MetaTraining()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet).fit(training, loader)
result = pathaware.evaluate(training.learner, SineWaves(shots=10), tasks=200).summary()
print(f"error on 200 new waves: {result['mse']:.3f} after adaptation")
