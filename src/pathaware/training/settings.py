"""The settings of problems and trainings, each defined once; without PyTorch, whose import takes seconds.

A setting that is an option of the command line as well has help, panel and shown default in the metadata of
its field, see `cli.options.of_settings`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pathaware.core.errors import UsageError
from pathaware.core.schema import read_table
from pathaware.core.settings import at_least, at_most, fractions, positive

if TYPE_CHECKING:
    import torch

    from pathaware.data.labelled import ClassImages

Precision = Literal["fp32", "tf32", "bf16"]

TASKS = "Tasks"
METHOD = "Method and network"
TRAINING = "Training"
DATA = "Data"
COMPUTE = "Device and processes"
"""Groups of settings: the panels of their options."""

_NETWORKS = "Network: conv4, resnet12, your own package.module:function or, to meta-train, timm:NAME."
_TEACHER = "Pretraining of the same classes, or a model with a frozen backbone, such as photos, to imitate."
_USUAL = "$PATHAWARE_DATA, else pathaware in the XDG data home"

T = TypeVar("T")


def option(default: T, panel: str, help: str, *, shown: str = "", name: str = "", path: bool = False) -> T:
    """A setting that is also an option.

    `shown` is the default in the help, if it is not `default`; `name` is the name of the option, if it is not
    the name of the setting.
    """
    metadata = {"panel": panel, "help": help, "shown": shown, "name": name, "path": path}
    setting: Any = field(default=default, metadata=metadata)
    return setting  # type: ignore[no-any-return]


def table(settings: Any) -> dict[str, Any]:
    """Settings by name, those of the class itself before inherited ones."""
    values = dataclasses.asdict(settings)
    owners = [vars(kind).get("__annotations__", {}) for kind in type(settings).__mro__]
    return {name: values[name] for owner in owners for name in owner if name in values}


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of a TOML file with these tables. TOML has no null, so None becomes the text "none"."""
    blocks = []
    for name, values in tables.items():
        lines = [f"{key} = {json.dumps('none' if v is None else v)}" for key, v in values.items()]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


@dataclass(frozen=True)
class Compute:
    """How to compute.

    - `seed`: decides the initialisation and all random choices; `device`: `auto`, `cpu`, `cuda` or `cuda:1`;
      `threads`: threads of a CPU, 0 for PyTorch's default; `graph`: on CUDA, run a step as a CUDA graph.
    - `precision`: on CUDA, `fp32`, `tf32` for products on tensor cores, `bf16` to also store activations of
      convolution blocks in bfloat16. Parameters and their gradients are float32 in all three.
    """

    seed: int = option(0, TRAINING, "Seed of the initialisation and of all random choices.")
    precision: Precision = "tf32"
    device: str = option("auto", COMPUTE, "auto, cpu, cuda or cuda:N.")
    threads: int = 0
    graph: bool = True

    def __post_init__(self) -> None:
        at_least(0, seed=self.seed, threads=self.threads)
        at_most(1024, threads=self.threads)

    @property
    def torch_device(self) -> torch.device:
        """The device, after checking that this machine has it."""
        from pathaware.training.compute import device

        return device(self.device)

    def apply(self) -> None:
        """Apply the settings that PyTorch keeps per process."""
        from pathaware.training.compute import apply

        apply(self)


@dataclass(frozen=True)
class Network:
    """Images, and a network for them.

    - `data`: an imported data set (see `pathaware data list`); several for a pretraining, with commas.
    - `data_dir`: folder of the imported data sets, empty for the usual one; `size`: side of the images that
      the network takes, 0 for that of the (first) data set.
    - `model_name`: `conv4`, `resnet12`, `timm:NAME` where timm is installed, or your own function as
      `package.module:function`, called with `ways`, `size`, `channels` and, unless it is 0, `width`.
    - `width`: filters per layer, 0 for those that the network usually has; `widths`: channels of the four
      blocks of `resnet12`, such as `64,128,256,480`.
    """

    data: str = option("glyphs", DATA, "Imported data set to train on; `pathaware data list` lists them.")
    data_dir: str = option("", DATA, "Folder of the imported data sets.", shown=_USUAL, path=True)
    size: int = 0
    model_name: str = option("conv4", METHOD, _NETWORKS, name="model")
    width: int = option(0, METHOD, "Filters per layer.", shown="64 for conv4")
    widths: str = ""

    def __post_init__(self) -> None:
        at_least(0, width=self.width, size=self.size)


@dataclass(frozen=True)
class AuxiliaryLosses:
    """Losses beside the query loss and what belongs to them, see `pathaware.training.recipe`.

    - `average`: momentum of an exponential average of θ₀ and Φ, 0 for none; `evaluate_average`: validate and
      keep that average; `distil`: weight of the loss that pulls predictions towards those of the average.
    - `teacher`: folder of a pretraining whose predictions are learned; `teach`: the weight of that loss;
      `temperature`: divides logits where predictions are compared.
    - `classify`: weight of the loss of classifying all training classes; `classify_end`: the weight to which
      it changes linearly; `dropout`: fraction of activations that are set to zero for queries.
    - `warmup`: iterations in which the learning rates grow from zero; `rule_rate`: learning rate of Φ, 0 for
      that of θ₀ (`rate`); `head_rate`: initial step size of the last layer, for methods that learn step
      sizes, 0 for that of all layers.
    """

    average: float = 0.0
    evaluate_average: bool = False
    distil: float = 0.0
    temperature: float = 4.0
    teacher: str = ""
    teach: float = 0.3
    classify: float = 0.0
    classify_end: float = 0.0
    dropout: float = 0.0
    warmup: int = 0
    rule_rate: float = 0.0
    head_rate: float = 0.0

    def __post_init__(self) -> None:
        at_least(0, rule_rate=self.rule_rate, warmup=self.warmup, head_rate=self.head_rate)
        at_least(0, classify=self.classify, classify_end=self.classify_end)
        fractions(average=self.average, distil=self.distil, teach=self.teach, dropout=self.dropout)
        positive(temperature=self.temperature)
        if (self.distil or self.evaluate_average) and not self.average:
            raise UsageError("average: 0 is not allowed with distil or evaluate_average; such as 0.995")
        if self.distil + (self.teach if self.teacher else 0) > 1:
            raise UsageError(f"distil: {self.distil} and teach {self.teach} are more than 1")


@dataclass(frozen=True)
class Training(Compute, AuxiliaryLosses):
    """How θ₀ and Φ are learned.

    - `iterations`: number of meta-iterations; `tasks`: tasks per meta-iteration; `rate`: learning rate of
      Adam; `schedule`: a constant learning rate, or half a cosine down to zero; `clip`: largest norm of the
      meta-gradient, 0 for no limit; `guard`: stop inner loops that diverge (see `Path.guarded`).
    - `validate`: iterations between validations, 0 for none; the best checkpoint is kept.
    - `validation_tasks`: tasks of a validation; `snapshots`: number of checkpoints to keep, the best by
      validation, for means over their predictions.
    - `save`: iterations between saved states, from which a stopped run resumes, 0 for none.
    - `histograms`: iterations between snapshots of the gradients of one layer, 0 for none (see
      `pathaware.training.gradient_probe`). They do not affect training.
    - `start`: folder of a pretraining whose network is the initialisation, except for the last layer (see
      `pathaware pretrain`); `head`: the last layer begins at its learned parameters or at the class means of
      each support set (see `pathaware.core.prototype_start`); `dimensions`: dimensions of the subspace in
      which the head `projected` takes the means.
    - `chunk`: tasks that run side by side, 0 for all; `checkpoint`: recompute inner steps instead of storing
      their activations. Both save memory and change no number; `fit_memory`: use them when memory runs out.
    - `execution`: how tasks run side by side, with equal results; `dtype`: the type of parameters and inputs;
      `compile`: compile the meta-iteration to C++ on a CPU (see `pathaware.engine.compiled`), with `auto` in
      runs that are long enough for it to pay.
    """

    iterations: int = option(60_000, TRAINING, "Number of meta-iterations.")
    tasks: int = option(4, TRAINING, "Tasks per meta-iteration.")
    rate: float = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float = 10.0
    guard: bool = True
    validate: int = 0
    validation_tasks: int = 200
    snapshots: int = 0
    save: int = 1000
    histograms: int = 0
    start: str = ""
    head: Literal["learned", "prototypes", "projected"] = "learned"
    dimensions: int = 64
    execution: Literal["auto", "loop", "vmap", "batched"] = "auto"
    chunk: int = 0
    checkpoint: bool = False
    fit_memory: bool = option(False, COMPUTE, "On out-of-memory, use smaller chunks and continue.")
    dtype: Literal["float32", "float64"] = "float32"
    compile: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        Compute.__post_init__(self)
        at_least(1, iterations=self.iterations, tasks=self.tasks, validation_tasks=self.validation_tasks)
        at_least(1, dimensions=self.dimensions)
        at_least(0, chunk=self.chunk, clip=self.clip, validate=self.validate, save=self.save)
        at_least(0, histograms=self.histograms, snapshots=self.snapshots)
        positive(rate=self.rate)
        AuxiliaryLosses.__post_init__(self)
        if self.snapshots and not self.validate:
            raise UsageError("snapshots: they are chosen by validation; set validate")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of all parameters and inputs."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@dataclass(frozen=True)
class Pretraining(Compute, Network):
    """Supervised pretraining: `[pretraining]` in the `config.toml` of its run.

    - `splits`: `train`, or `train,val` to learn the validation classes as well; `dropout`: fraction of
      activations that the network sets to zero; `head`: `linear`, or `cosine` for a classifier by the angle
      between features and classes; `epochs`: passes over all images; `batch`: images per step; `rate`:
      learning rate of SGD with Nesterov momentum, half a cosine to zero after `warmup` epochs.
    - `warmup`: epochs in which it grows from zero; `decay`: of weights; `smoothing`: of labels.
    - `crop`: smallest area of a random crop, as a fraction of the image; 1 shifts the padded image instead.
    - `jitter`: strength of random changes of colour; `mirror`: mirror images at random; `cutmix`: fraction
      of images with a part of another one, in the first four fifths of training; `rotation`: weight of the
      loss of a second head, which predicts the angle by which an image is rotated.
    - `ema`: momentum of the average of weights that is validated and kept; 0 for the weights themselves.
    - `teacher`: folder of a pretraining of the same classes, or of a model with a frozen backbone, which
      then predicts by the class means of its features; `distil`: weight of the teacher's predictions;
      `temperature`: divides logits where predictions are compared; `match`: weight with which a linear map
      of the features learns which images are similar for the teacher.
    - `teacher_views`: augmented views of each image that the teacher predicts once, before training; their
      mean is learned, which is far faster. With 0 it predicts every augmented image anew.
    - `validate`: epochs between validations, 0 for none. If the validation classes are not trained on, the
      checkpoint is the best one by 5-way 5-shot prototypes of their features, otherwise the last one.
    - `save`: epochs between saved states.
    """

    splits: str = option("train", DATA, "Classes to learn: train, or train,val for both.")
    dropout: float = 0.0
    head: Literal["linear", "cosine"] = option("linear", METHOD, "Classifier: linear or cosine.")
    epochs: int = option(100, TRAINING, "Number of epochs.")
    batch: int = 256
    rate: float = 0.1
    warmup: int = 0
    decay: float = 5e-4
    smoothing: float = 0.0
    crop: float = option(0.35, TRAINING, "Smallest area of a crop; 1 shifts the image, for small images.")
    jitter: float = 0.4
    mirror: bool = True
    cutmix: float = option(0.0, TRAINING, "Fraction of images that get a part of another one.")
    rotation: float = option(0.0, TRAINING, "Weight of a second task: predict an image's rotation.")
    ema: float = 0.999
    teacher: str = option("", TRAINING, _TEACHER, shown="none")
    distil: float = 0.7
    temperature: float = 4.0
    match: float = 0.0
    teacher_views: int = 0
    validate: int = 5
    save: int = 10
    precision: Precision = "bf16"

    def __post_init__(self) -> None:
        Compute.__post_init__(self)
        Network.__post_init__(self)
        at_least(1, epochs=self.epochs, batch=self.batch)
        at_least(0, warmup=self.warmup, decay=self.decay, rotation=self.rotation, validate=self.validate)
        at_least(0, save=self.save, teacher_views=self.teacher_views, match=self.match)
        if self.match and not self.teacher:
            raise UsageError(f"match: {self.match} needs a teacher whose features are learned")
        fractions(dropout=self.dropout, smoothing=self.smoothing, jitter=self.jitter, cutmix=self.cutmix)
        fractions(ema=self.ema, distil=self.distil, crop=self.crop)
        positive(rate=self.rate, temperature=self.temperature, crop=self.crop)
        if self.warmup >= self.epochs:
            one = "epoch" if self.epochs == 1 else "epochs"
            raise UsageError(
                f"warmup: {self.warmup} is not allowed; must be fewer than {self.epochs:,} {one}"
            )
        if self.chosen_splits not in (["train"], ["train", "val"]):
            raise UsageError(f"{self.splits!r} must be one of train, train,val", field="splits")

    @property
    def chosen_splits(self) -> list[str]:
        return [part.strip().replace("validation", "val") for part in self.splits.split(",")]

    @property
    def label(self) -> str:
        """A short name for folders, such as `miniimagenet-resnet12`."""
        return f"{self.data.replace(',', '-')}-{self.model_name.replace(':', '-')}"

    def to_dict(self) -> dict[str, Any]:
        return table(self)

    def to_toml(self) -> str:
        """The text of `config.toml`."""
        return to_toml({"pretraining": self.to_dict()})

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        return read_table("pretraining", settings, cls)

    def images(self, splits: list[str]) -> ClassImages:
        """The images of some splits, on the device."""
        from pathaware.data.catalogue import open_store
        from pathaware.data.labelled import ClassImages

        directory = Path(self.data_dir) if self.data_dir else None
        stores = [open_store(name.strip(), directory) for name in self.data.split(",")]
        return ClassImages(stores, splits, self.torch_device, size=self.size)


@dataclass(frozen=True)
class ClassificationSettings(Network):
    """Tasks of images.

    - `ways`, `shots`, `queries`: classes per task, and support and query images per class; `augment`: crop
      and mirror training images at random, see `Augmentation`.
    - `jitter`, `grey`: recolour training images; `erase`, `drop`: blank parts of them; `affine`: distort
      them.
    - `cutmix`: fraction of training queries with a part of another query, see `pathaware.training.recipe`;
      `zero_head`: initialise the last layer to zero, so that no class is preferred at first.
    - `labels`: if false, training does not read the labels of the training classes: each class of a task is
      one image and its augmentations, see `UnlabelledEpisodes`. Validation and test tasks are ordinary
      ones.
    - `weights`: file of pretrained weights, safetensors or a PyTorch state dict.
    - `adapt`: the parts of the network that adapt, see `pathaware.models.backbones.Adapt`; the others stay
      as they are.
    - `normalisation`: the mean and deviation that the network expects: those of the `data` set or of
      `imagenet`; `auto` is `data`, for networks of timm what timm says.
    - `varying`: a task has 2 to `ways` classes with 1 to `shots` support images each, in general not
      equally many, see `VaryingTasks`.
    - `meta_split`: the split whose classes meta-train. With a frozen network that was pretrained on the
      training classes, `val` gives tasks of classes that the network has not seen; then there is no
      validation.
    - `mirror_support`: training tasks adapt to the mirror images of their support set as well; a frozen
      network sees each support image and its mirror image, and takes the mean of their features.
    - `statistics`: what batch norm normalises by: the mean and variance of each `batch`, as in MAML, or the
      `running` ones that the pretraining `training.start` has collected. The latter do not change, so no
      query affects the prediction of another. Convolutions before them have no bias: the mean contains it.
    """

    ways: int = option(5, TASKS, "Classes per task.")
    shots: int = option(5, TASKS, "Support images per class.")
    queries: int = option(15, TASKS, "Query images per class.")
    augment: bool = True
    jitter: float = 0.0
    grey: float = 0.0
    erase: float = 0.0
    drop: float = 0.0
    affine: float = 0.0
    cutmix: float = 0.0
    zero_head: bool = False
    labels: bool = True
    weights: str = option(
        "", METHOD, "Pretrained weights: safetensors, or a PyTorch state dict.", shown="none", path=True
    )
    adapt: Literal["all", "head", "last-block", "adapters"] = option(
        "all", METHOD, "Parts of the network that adapt: head, last-block, adapters or all."
    )
    normalisation: Literal["auto", "data", "imagenet"] = "auto"
    varying: bool = False
    meta_split: Literal["train", "val"] = "train"
    mirror_support: bool = False
    statistics: Literal["batch", "running"] = "batch"

    def __post_init__(self) -> None:
        at_least(2, ways=self.ways)
        at_least(1, shots=self.shots, queries=self.queries)
        super().__post_init__()
        if not self.labels and (self.cutmix or self.mirror_support):
            raise UsageError("labels: tasks without labels take neither cutmix nor mirror_support")


@dataclass(frozen=True)
class SineSettings:
    """Tasks of sine waves.

    - `shots`, `queries`: support points, and query points during training; `points`: points of the grid on
      which a wave is evaluated.
    """

    shots: int = option(10, TASKS, "Support points per wave.")
    queries: int = option(10, TASKS, "Query points per wave during training.")
    points: int = 1000

    def __post_init__(self) -> None:
        at_least(1, shots=self.shots, queries=self.queries)
        at_least(2, points=self.points)
