"""MAML on sine waves, written out: meta-train, then fit a new wave from ten points.

python examples/maml_sine.py
"""

import torch
from torch.nn.functional import mse_loss

from pathaware import GradientDescent, MetaLearner
from pathaware.data.sine import SineWaves
from pathaware.models import mlp

ITERATIONS = 2000

torch.set_num_threads(1)  # the tensors are tiny; more threads only get in the way
torch.manual_seed(0)
random = torch.Generator().manual_seed(0)
waves = SineWaves(shots=10)

model = mlp(1, (40, 40), 1)
learner = MetaLearner(model, GradientDescent(model, steps=5, rate=0.01), mse_loss)
optimizer = torch.optim.Adam(learner.parameters(), lr=2e-3)

for iteration in range(ITERATIONS):
    loss = learner.meta_loss(waves.sample(25, random))  # 25 tasks side by side, exact second order
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
    optimizer.step()
    if iteration % 500 == 0:
        print(f"iteration {iteration}: meta-loss {loss:.3f}")

test = SineWaves(shots=10, queries=1000, grid=True).sample(100, random)
with torch.no_grad():
    predictions = learner.predictions_per_step(test.support_x, test.support_y, test.query_x)
errors = [float(mse_loss(outputs, test.query_y)) for outputs in predictions.outputs]
print("error on 100 new waves after each step:", " ".join(f"{error:.3f}" for error in errors))
