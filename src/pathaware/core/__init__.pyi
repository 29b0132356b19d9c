# Made by `python -m tools.stub`.
from pathaware.core.episodes import TaskSource as TaskSource
from pathaware.core.errors import RunError as RunError
from pathaware.core.errors import Stopped as Stopped
from pathaware.core.few_shot import FewShotLearner as FewShotLearner
from pathaware.core.few_shot import StepPredictions as StepPredictions
from pathaware.core.rule import Context as Context
VERSION: str
