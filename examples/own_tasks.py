"""Meta-learning on tasks of your own, the whole loop in one file: decaying oscillations from ten points.

python examples/own_tasks.py
"""

import torch
from torch import nn

import pathaware

METHOD, SETTINGS = pathaware.pamela, {"steps": 5, "skip": 2}  # or maml, imaml, r2d2, …
ITERATIONS = 1500
TASKS, SUPPORT, QUERIES = 25, 10, 20
LEARNING_RATE, CLIP, EVALUATE_EVERY = 2e-3, 1.0, 500

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are tiny
device = "cuda" if torch.cuda.is_available() else "cpu"


def draw(tasks):
    """Episodes: inputs and targets of the support sets and of the queries, a task in each row."""
    x = 6 * torch.rand(tasks, SUPPORT + QUERIES, 1)
    decay, frequency, phase = torch.rand(3, tasks, 1, 1)
    y = torch.exp(-decay * x) * torch.sin((1 + frequency) * x + 3 * phase)
    parts = x[:, :SUPPORT], y[:, :SUPPORT], x[:, SUPPORT:], y[:, SUPPORT:]
    return pathaware.Episodes(*parts).to(device)


network = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
learner = METHOD(network, nn.functional.mse_loss, **SETTINGS).to(device)
optimizer = torch.optim.Adam(learner.parameters(), lr=LEARNING_RATE)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ITERATIONS)
new_tasks = draw(200)
for iteration in range(ITERATIONS):
    if iteration % EVALUATE_EVERY == 0:
        print(f"iteration {iteration}: error on 200 new tasks {learner.query_loss(new_tasks):.4f}")
    learner.progress(iteration / ITERATIONS)  # for methods with a schedule
    optimizer.zero_grad()
    learner.backward(draw(TASKS))
    nn.utils.clip_grad_norm_(learner.parameters(), CLIP)
    optimizer.step()
    schedule.step()
print(f"iteration {ITERATIONS}: error on 200 new tasks {learner.query_loss(new_tasks):.4f}")
