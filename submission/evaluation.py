"""The competition's score during training: vote over the scored tasks of a dataset and compare with their outputs."""

from collections.abc import Callable

from arc_trm.config import LogConfig
from arc_trm.sampler import evaluation_rows
from arc_trm.trainer import Trainer
from arc_trm.vote import Tally, score_ranked
from data_prep.grid import Grid
from data_prep.progress import Progress
from data_prep.store import ArcStore
from submission.predict import Voter, outputs_of_store

PASSES = (1, 2, 5, 10, 100, 1000)


def solutions_of(store: ArcStore) -> dict[str, list[Grid]]:
    """The known outputs of the scored tasks, by group name; tasks with a hidden output are left out."""
    solutions: dict[str, list[Grid]] = {}
    for number, group in enumerate(store.groups):
        pairs = range(int(store.group_pairs[number]), int(store.group_pairs[number + 1]))
        outputs = [store.output(pair) for pair in pairs if store.pair_tests[pair] >= 0]
        known = [output for output in outputs if output is not None]
        if group.scored and outputs and len(known) == len(outputs):
            solutions[group.name] = known
    return solutions


def arc_evaluation(store: ArcStore, log: LogConfig) -> Callable[[Trainer], dict[str, float]] | None:
    """What evaluates a trainer on the scored tasks of `store`; None where nothing is scored.

    An evaluation that the trainer asks to stop has no scores.
    """
    solutions = solutions_of(store)
    if not solutions:
        return None
    outputs, asked = outputs_of_store(store)
    rows = evaluation_rows(store, augmentations=log.evaluation_augmentations)

    def evaluate(trainer: Trainer) -> dict[str, float]:
        windows = trainer.config.train.canvas != "full"
        task_rows = trainer.config.model.embedding_rows == "task"
        voter = Voter(store, asked, log.evaluation_batch, trainer.accelerator, windows, task_rows=task_rows)
        tally = Tally(outputs)
        quiet = not trainer.accelerator.is_main_process
        with trainer.averaged(), Progress("evaluating", len(rows), unit="answers", quiet=quiet) as bar:
            complete = voter.vote(trainer.predictor(), rows, tally, bar.update, trainer.should_stop)
        return tally_scores(tally, solutions) if complete else {}

    return evaluate


def tally_scores(tally: Tally, solutions: dict[str, list[Grid]]) -> dict[str, float]:
    """The three scores of the first two candidates, and pass@k of the share of outputs for several k."""
    ranked: dict[str, list[list[Grid]]] = {name: [] for name in solutions}
    for number, output in enumerate(tally.outputs):
        if output.task_id in ranked:
            ranked[output.task_id].append([c.grid for c in tally.candidates(number, limit=max(PASSES))])
    scores = score_ranked(ranked, solutions, k=2)
    figures = {"outputs": scores.outputs, "task_mean": scores.task_mean, "tasks": scores.tasks}
    figures |= {f"pass@{k}": score_ranked(ranked, solutions, k).outputs for k in PASSES}
    return {f"evaluation/{name}": value for name, value in figures.items()}
