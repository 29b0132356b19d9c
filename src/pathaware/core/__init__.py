"""Adaptation itself, without optimisations for speed: learners, paths, update rules and heads.

- point: the adapted parameters of T tasks as one flat tensor `[T, D]` (`parameters`)
- layout: which entries of that tensor belong to which parameter, filter and layer (`parameters.Layout`)
- path: the points θ₀ → θ₁ → … → θₙ that adaptation visits, and the divergence guard (`path`)
- rule: computes the next point from the path and the gradient; its coefficients Φ are learned (`rule.Rule`)
- head: replaces the last linear layer by one that is solved or compared, without steps (`head.Head`)
- meta-gradient: the gradient of the query loss with respect to θ₀ and Φ, or an estimate (`meta_gradient`)

`learner.MetaLearner` combines them; `few_shot.FewShotLearner` is the interface of all learners. Beside them:
`episodes` (a batch of tasks), `losses`, `batch_norm`, and what every sub-package needs: `errors`,
`settings`, `seeding`. All sub-packages may import core, and core imports none of them: `execution.engine`
loads the engine by name, where it is installed.
"""

from pathaware.core.exports import exports

VERSION = "0.2.0"

_PUBLIC = {
    "episodes": "TaskSource",
    "errors": "RunError Stopped",
    "few_shot": "FewShotLearner StepPredictions",
    "rule": "Context",
}

__getattr__, __dir__, __all__ = exports(__name__, _PUBLIC)
