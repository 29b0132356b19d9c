"""An update rule of your own: learned step sizes and momentum, trained beside plain MAML.

python examples/custom_rule.py

After 1,000 iterations the error on new waves is about half that of MAML (0.29 and 0.55, seed 0). The step
size per parameter makes the difference: with a single one, the error is no smaller than MAML's.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from pathaware import MetaLearner, Rule
from pathaware.data.sine import SineWaves
from pathaware.methods import GradientDescent
from pathaware.models import mlp

ITERATIONS = 1000


class Momentum(Rule):
    """θⱼ₊₁ = θⱼ − α ∇L(θⱼ) + μ (θⱼ − θⱼ₋₁), with learned α `[D]` and μ `[]`; points are `[T, D]`."""

    def __init__(self, network, steps=5, *, rate=0.01):
        super().__init__(network, steps)
        self.alpha = nn.Parameter(torch.full((len(self.layout),), rate))
        self.mu = nn.Parameter(torch.tensor(0.0))

    def step(self, j, points, gradient):
        previous = points[-2] if j else points[-1]
        return points[-1] - self.alpha * gradient + self.mu * (points[-1] - previous)


torch.set_num_threads(1)  # the tensors are tiny; more threads only get in the way


def train(rule_class):
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    model = mlp(1, (40, 40), 1)
    learner = MetaLearner(model, rule_class(model, steps=5, rate=0.01), mse_loss)
    optimizer = torch.optim.Adam(learner.parameters(), lr=2e-3)
    for _ in range(ITERATIONS):
        loss = learner.meta_loss(SineWaves(shots=10).sample(25, random))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        test = SineWaves(shots=10, queries=1000, grid=True).sample(200, random)
        return learner, float(learner.meta_loss(test))


for rule_class in (GradientDescent, Momentum):
    learner, error = train(rule_class)
    learned = {name: round(value.mean().item(), 3) for name, value in learner.rule.named_parameters()}
    print(f"{rule_class.__name__}: error {error:.3f} on 200 new waves; learned, on average {learned}")
