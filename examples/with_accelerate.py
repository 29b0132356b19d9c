"""Meta-training in the loop of Hugging Face Accelerate: `accelerate launch examples/with_accelerate.py`.

pip install accelerate
"""

import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import pathaware
from pathaware.data import SineWaves
from pathaware.models import mlp

ITERATIONS = 500

torch.manual_seed(0)
tasks = SineWaves(shots=10).sample(2000, torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(*tasks.tensors()), batch_size=25, shuffle=True)  # each item is a task
learner = pathaware.reptile(mlp(), mse_loss, step_size=0.02)  # its gradient is no derivative of a loss
optimizer = torch.optim.Adam(learner.parameters(), lr=2e-3)

accelerator = Accelerator(cpu=not torch.cuda.is_available())
learner, optimizer, loader = accelerator.prepare(learner, optimizer, loader)
for _ in range(ITERATIONS):
    episodes = pathaware.Episodes(*next(iter(loader)))
    loss = learner(episodes)  # `meta_loss`; its backward adds the method's own meta-gradient
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()

learner = accelerator.unwrap_model(learner)
before, *_, after = pathaware.evaluate(learner, SineWaves(shots=10), tasks=200).summary()["mse_per_step"]
accelerator.print(f"error on 200 new waves: {before:.3f} before adaptation, {after:.3f} after")
