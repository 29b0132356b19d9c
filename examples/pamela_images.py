"""PAMELA on images of characters, which need no download: train, look at Q and P, adapt to new characters.

python examples/pamela_images.py
"""

import torch
from torch.nn.functional import cross_entropy

from pathaware import MetaLearner
from pathaware.data import open_store
from pathaware.data.episodes import ImageEpisodes
from pathaware.methods import Pamela
from pathaware.models import conv4

ITERATIONS = 150

torch.manual_seed(0)
random = torch.Generator().manual_seed(0)
glyphs = open_store("glyphs")
train = ImageEpisodes(glyphs, "train", ways=5, shots=1, queries=5)
test = ImageEpisodes(glyphs, "test", ways=5, shots=1, queries=15)

model = conv4(ways=5, size=28, channels=1, width=16)
learner = MetaLearner(model, Pamela(model, steps=5, skip=2, rate=0.1, q_start=0.5), cross_entropy)
optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)

for iteration in range(ITERATIONS):
    loss = learner.meta_loss(train.sample(4, random))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learner.parameters(), 10.0)
    optimizer.step()
    if iteration % 50 == 0:
        print(f"iteration {iteration}: meta-loss {loss:.3f}")

tasks = test.sample(50, random)
with torch.no_grad():
    predictions = learner.predictions_per_step(tasks.support_x, tasks.support_y, tasks.query_x)
for step, outputs in enumerate(predictions.outputs):
    accuracy = (outputs.argmax(-1) == tasks.query_y).float().mean()
    print(f"after step {step}: {100 * accuracy:.1f} % of the characters of 50 new tasks")

print("mean step size Q of each step:", [f"{q:.3f}" for q in learner.rule.q.mean(1).tolist()])
print("mean skip P after steps", learner.rule.skips, [f"{p:.3f}" for p in learner.rule.p.mean(1).tolist()])
