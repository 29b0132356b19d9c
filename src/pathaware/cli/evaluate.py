"""`pathaware evaluate RUN`: evaluate a run on new tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pathaware.cli.options import (
    DATA,
    METHOD,
    OUTPUT,
    TASKS,
    Device,
    Json,
    Replace,
    argument,
    complete_data,
    complete_model,
    examples,
    flag,
    must_be_new,
    open_trained,
    panel_option,
)
from pathaware.core.errors import UsageError

if TYPE_CHECKING:
    from pathaware.core.few_shot import QueryLevel
    from pathaware.inference.trained_model import TrainedModel
    from pathaware.training.evaluation import Balance, Evaluation, Views
    from pathaware.training.refinement import Refinement

FIGURES = (".png", ".svg", ".pdf")
EXAMPLES = examples(
    "pathaware evaluate glyphs --tasks 100",
    "pathaware evaluate glyphs --tasks 100 --queries alone",
    "pathaware evaluate glyphs --tasks 100 --ways 10 --shots 1",
    "pathaware evaluate glyphs --data omniglot",
    "pathaware evaluate runs/sine-k10-pamela-seed0 --json",
    "pathaware evaluate glyphs --tasks 100 --refine sinkhorn",
    "pathaware evaluate glyphs --tasks 100 --open-set",
)


def evaluate(
    run: Path = argument(
        "Folder of a trained run, or glyphs, photos or sine.", "RUN", complete=complete_model
    ),
    split: str = panel_option("test", TASKS, "Split of the tasks: train, val or test."),
    tasks: int | None = panel_option(
        None, TASKS, "Number of new tasks.", shown="1000 for sine, 600 for images"
    ),
    ways: int | None = panel_option(None, TASKS, "Classes per task.", shown="as trained", min=2),
    shots: int | None = panel_option(None, TASKS, "Support images per class.", shown="as trained", min=1),
    data: str | None = panel_option(
        None,
        DATA,
        "Data set of the tasks. Images get the size and channels of the training images.",
        shown="as trained",
        complete=complete_data,
    ),
    queries: str | None = panel_option(
        None,
        METHOD,
        "What a prediction may know of the other queries of its task: nothing (alone), their "
        "batch-norm statistics (batch), or all that the method uses (joint).",
        shown="joint if the method has it, else batch",
    ),
    inductive: bool = flag("--inductive", METHOD, "Same as --queries alone."),
    balance: str = panel_option(
        "balanced", TASKS, "Classes among the queries: balanced, or dirichlet for unequal numbers."
    ),
    views: str = panel_option(
        "single", METHOD, "Views of every image: single, or mirror for the mean over it and its mirror image."
    ),
    refine: str = panel_option(
        "none",
        METHOD,
        "Use the queries of a task together: centre subtracts the mean of their logits, means "
        "computes class means with them, sinkhorn adapts again with their balanced pseudo-labels, tim "
        "fits class weights to all of them; or none.",
    ),
    snapshots: bool = flag("--snapshots", METHOD, "Average over the run's snapshots (training.snapshots)."),
    steps: int | None = panel_option(None, METHOD, "Number of inner steps.", shown="as trained"),
    extend: bool = flag("--extend", METHOD, "Allow more steps than in training: repeat the last one."),
    baselines: bool = flag(
        "--baselines",
        METHOD,
        "Also evaluate nearest class mean and logistic regression on the frozen features.",
    ),
    seed: int = panel_option(0, TASKS, "Seed of the tasks; the same for every method.", min=0),
    record: Path | None = panel_option(
        None, OUTPUT, "Also write the result and its provenance to this JSON file."
    ),
    show: Path | None = panel_option(
        None, OUTPUT, "Also draw a reliability diagram and a risk-coverage curve in this .png file."
    ),
    open_set: bool = flag(
        "--open-set", TASKS, "Also measure how well images of foreign classes are recognised as such."
    ),
    calibrate: bool = flag(
        "--calibrate",
        TASKS,
        "First fit temperatures and thresholds for unknown images on validation classes, and "
        "store them in RUN.",
    ),
    replace: Replace = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Adapt to new tasks and measure predictions after every inner step."""
    from pathaware.cli.show import print_evaluation
    from pathaware.inference.change_ways import load_for
    from pathaware.inference.trained_model import SHIPPED, TrainedModel, find_run
    from pathaware.training.evaluation import SnapshotMean
    from pathaware.training.evaluation import evaluate as measure
    from pathaware.training.progress import ProgressDisplay
    from pathaware.training.provenance import evaluation_record, write_record

    for option, path in (("--record", record), ("--show", show)):
        if path:
            must_be_new(option, path, replace)
    if show and show.suffix and show.suffix.lower() not in FIGURES:
        raise UsageError(f"must end in {' or '.join(FIGURES)}, not {show}", field="show")
    opened = open_trained(find_run(run))
    if data is None:
        _must_have_data(run, opened.config.problem)
    learner, problem = load_for(opened, device, ways, shots, data)
    if baselines and not problem.frozen:
        raise UsageError("the model has no frozen features; train with --adapt head", field="baselines")
    for field, asked in (("show", show), ("open_set", open_set), ("calibrate", calibrate)):
        if asked and problem.regression:
            raise UsageError(f"{problem.label} has no classes", field=field)
        if asked and (ways or shots) and field != "show":
            raise UsageError("cannot be combined with other ways or shots than in training", field=field)
        if asked and problem.label != opened.config.problem.label and field != "show":
            raise UsageError("cannot be combined with another data set than in training", field=field)
    if calibrate and opened.folder.parent == SHIPPED:
        raise UsageError(
            f"the files of {run} belong to the package; calibrate a run of your own", field="calibrate"
        )
    model = None if problem.regression else TrainedModel.open(run, device)
    if snapshots and problem.regression:
        raise UsageError("a mean of probabilities needs classes", field="snapshots")
    if snapshots:
        if ways or shots:
            raise UsageError(
                "cannot be combined with other ways or shots than in training", field="snapshots"
            )
        learner = SnapshotMean(opened.load_snapshots(device))
    what: dict[str, Any] = {
        "split": split,
        "tasks": problem.evaluation_tasks if tasks is None else tasks,
        "seed": seed,
        "balance": cast("Balance", balance),
    }
    title = f"{opened.config.method} on {problem.label}, evaluation"
    with ProgressDisplay(title, what["tasks"], quiet=json, transient=True) as display:
        result = measure(
            learner,
            problem,
            **what,
            steps=steps,
            extend=extend,
            queries=cast("QueryLevel | None", queries),
            inductive=inductive,
            keep_outputs=model is not None,
            views=cast("Views", views),
            refine=cast("Refinement", refine),
            progress=display.count,
        )
    others: dict[str, dict[str, Any]] = {}
    if baselines:
        from pathaware.training.features import BASELINES, FeatureBaseline

        others = {
            name: measure(FeatureBaseline(learner, name), problem, **what, queries="alone").summary()
            for name in BASELINES
        }
    if model and calibrate:
        from pathaware.inference.calibration import fit_calibration

        with ProgressDisplay("calibration", quiet=json, transient=True) as display:
            model.calibration = fit_calibration(model, progress=display.count)
    foreign: dict[str, Any] = {}
    if model and open_set:
        from pathaware.inference.open_set import evaluate_open_set

        found = evaluate_open_set(model, split=split, tasks=len(result.values), seed=seed)
        foreign = {"open_set": found.summary()}
    # Everything was accepted: from here on, files are written.
    if model and model.calibration and calibrate:
        model.calibration.write(opened.folder)
    more: dict[str, Any] = {}
    if model:
        more = {**_confidence(model, problem, result, show), **foreign}
    if record:
        compared = {"baselines": others} if others else {}
        write_record(record, {**evaluation_record(opened, result), **compared})
    if others:
        more["baselines"] = others
    print_evaluation(opened, result, json=json, more=more)


def _must_have_data(run: Path, problem: Any) -> None:
    """Raise if the training data set, on whose tasks a run is evaluated by default, is not here."""
    from pathaware.data import open_store

    if problem.regression:
        return
    try:
        open_store(problem.data, Path(problem.data_dir) if problem.data_dir else None)
    except UsageError as error:
        raise UsageError(
            f"{run} was trained on {problem.data} and is measured on its tasks unless --data names other "
            f"images; {error.message}",
            field="run",
        ) from None


def _confidence(model: TrainedModel, problem: Any, result: Evaluation, show: Path | None) -> dict[str, Any]:
    """The calibration error of a result, and with a temperature if one belongs to its level."""
    from pathaware.training.metric import reliability

    assert result.outputs is not None
    assert result.targets is not None
    found = {"calibration_error": reliability(result.outputs, result.targets)}
    more: dict[str, Any] = {}
    plain = (result.queries, result.views, result.refine, result.snapshots) == ("alone", "single", "none", 1)
    if model.calibration is not None and plain:  # as in the predictions that it was fitted to
        more["temperature"] = model.calibration.temperature(problem.ways, problem.shots)
        found["calibrated_error"] = reliability(result.outputs, result.targets, more["temperature"])
    best = list(found.values())[-1]
    if show is not None:
        from pathaware.report.figures import calibration_figure
        from pathaware.report.style import save

        save(calibration_figure({model.config.method: best}), show)
    more |= {name: each.error for name, each in found.items()}
    return {**more, "reliability": best.bins, "risk_coverage": best.risk_coverage}
