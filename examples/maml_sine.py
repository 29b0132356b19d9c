"""MAML on sine waves, written out: meta-train, then fit a new wave from ten points.

python examples/maml_sine.py
"""

import torch
from torch.nn.functional import mse_loss

import pathaware
from pathaware.data import SineWaves
from pathaware.models import mlp

ITERATIONS = 2000

torch.set_num_threads(1)  # the tensors are tiny; more threads only get in the way
torch.manual_seed(0)
random = torch.Generator().manual_seed(0)
waves = SineWaves(shots=10)

learner = pathaware.maml(mlp(1, (40, 40), 1), mse_loss, steps=5, step_size=0.01)
optimizer = torch.optim.Adam(learner.parameters(), lr=2e-3)

for iteration in range(ITERATIONS):
    optimizer.zero_grad()
    losses = learner.backward(waves.sample(25, random))  # 25 tasks side by side, exact second order
    torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
    optimizer.step()
    if iteration % 500 == 0:
        print(f"iteration {iteration}: meta-loss {losses.mean():.3f}")

test = SineWaves(shots=10, queries=1000, grid=True).sample(100, random)
with torch.no_grad():
    predictions = learner.predictions_per_step(test.support_x, test.support_y, test.query_x)
errors = [float(mse_loss(outputs, test.query_y)) for outputs in predictions.outputs]
print("error on 100 new waves after each step:", " ".join(f"{error:.3f}" for error in errors))
