"""Batches: what the trainer consumes, and how the examples of a dataset are made on the training device."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from arc_trm.checkpoint import RowNames
from arc_trm.config import RunConfig
from arc_trm.sampler import BoardSampler, Integers, RandomBits, Rows, Sampler
from data_prep.boards import BoardRows, BoardStore
from data_prep.canvas import CANVAS_SIDE, COLOUR_OFFSET, EOS, IGNORE_LABEL, PAD, VOCAB_SIZE
from data_prep.files import InputError
from data_prep.grid import DIHEDRAL_KEEPS_SHAPE, dihedral
from data_prep.maze import is_valid_shortest, views
from data_prep.store import ArcStore, open_store
from data_prep.sudoku import bits_per_shuffle, is_valid, shuffles

Device = torch.device | str
# What an export says of its dataset, as the manifest has it.
FACTS = ("recipe", "canvas", "leak", "held_out", "excluded", "generated", "seed", "augmentations", "corpora")
# Grids turned and placed on their canvases in one go; a few MB of indices on the full canvas.
PAIRS_AT_ONCE = 512
# Every canvas size gets a multiple of this many slots: one, two and four processes share them evenly and train alike.
SHARED_BY = 4


@dataclass(frozen=True)
class Batch:
    """Examples side by side: what is asked, what is the answer, and which task in which view it is."""

    inputs: Tensor  # int32 [b, l] tokens
    labels: Tensor  # int32 [b, l] tokens, IGNORE_LABEL where nothing is asked
    puzzle_ids: Tensor  # int64 [b] rows of the puzzle embedding
    # int32 [b, 11] dihedral element and the token of every colour, for models whose embedding rows belong to tasks.
    views: Tensor | None = None

    def columns(self) -> dict[str, Tensor]:
        """The tensors by name, `views` only where there are some."""
        return {name: column for name, column in vars(self).items() if column is not None}


def upload(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy of `array` on `device`; from pinned memory, so that a GPU goes on with its queue meanwhile."""
    tensor = torch.from_numpy(np.array(array))
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Source(Protocol):
    """An endless supply of examples: what is offered to a batch slot depends on (seed, step, slot) alone."""

    vocab_size: int  # distinct tokens
    seq_len: int  # tokens of one example
    num_puzzles: int  # rows of the puzzle embedding table

    def offer(self, step: int, slots: slice) -> Batch:
        """The examples offered to these batch slots at this step."""


@dataclass(frozen=True)
class Part:
    """A share of the batch slots that one source fills: all of them, or those of one canvas size."""

    source: Source
    slots: int


# ARC ------------------------------------------------------------------------------------------------------------------


class ArcBatches:
    """Makes the examples of some groups on `device`, equal to what data_prep.canvas.encode makes of single pairs.

    A bank holds the canvas of every grid under every dihedral element, placed at (0, 0) and without colour permutation,
    as lines of side + 1 cells behind as many of PAD. The spare cell takes the EOS that has no room, and makes a
    placement a mere shift of where the window of side * (side + 1) cells begins: one row copy an example. The
    permutation is a table of twelve tokens an example, in which the labels' PAD is IGNORE_LABEL.
    """

    def __init__(
        self,
        store: ArcStore,
        device: Device,
        side: int = CANVAS_SIDE,
        groups: Integers | None = None,
        task_rows: bool = False,
    ) -> None:
        """Fill the bank for `groups` (indices into store.groups, None: all).

        With `task_rows` the embedding row of an example is its group, and the batch names the augmentation.
        Raises ValueError when an input, or the output of a training pair, does not fit the window of `side`
        cells; other outputs that do not fit have no labels.
        """
        used = np.ones(len(store.pair_groups), bool) if groups is None else np.isin(store.pair_groups, groups)
        pairs = np.flatnonzero(used)
        self.store, self.device, self.side, self.task_rows = store, torch.device(device), side, task_rows
        self.seq_len = side**2  # tokens of one example
        self._positions = np.full(len(used), -1)
        self._positions[pairs] = np.arange(len(pairs))
        bank = torch.from_numpy(_fill_bank(store, pairs, side).reshape(-1))
        self._windows = bank.to(self.device).unfold(0, side * (side + 1), 1)

    def make(self, rows: Rows) -> Batch:
        """The examples of `rows`; a pair without a known output has labels IGNORE_LABEL alone.

        The pairs are of the bank's groups, each of its puzzle's, and placed where their visible grids stay in the
        window. The labels of an asked output that leaves it mean nothing.
        """
        window = self.side * (self.side + 1)
        entries = self._positions[rows.pairs] * 8 + rows.augmentations.dihedrals
        first = entries * 4 * window - rows.top * (self.side + 1) - rows.left
        starts = upload(np.concatenate((first + window, first + 3 * window)), self.device)
        tables = upload(_token_tables(rows.augmentations.permutations), self.device)
        lines = self._windows.index_select(0, starts).view(2, len(rows), self.side, self.side + 1)
        tokens = lines[..., : self.side].long().view(2, len(rows), self.seq_len)
        inputs, labels = tables.gather(2, tokens)
        if not self.task_rows:
            return Batch(inputs, labels, upload(rows.puzzles, self.device))
        dihedrals = upload(rows.augmentations.dihedrals.astype(np.int32), self.device)
        views = torch.cat((dihedrals[:, None], tables[0, :, COLOUR_OFFSET:]), dim=1)
        return Batch(inputs, labels, upload(self.store.pair_groups[rows.pairs].astype(np.int64), self.device), views)


def _fill_bank(store: ArcStore, pairs: Integers, side: int) -> NDArray[np.uint8]:
    """Empty lines, then the canvas of every grid in lines of side + 1 cells, uint8[pairs, 8, 2, 2, side, side + 1].

    Raises ValueError if the input, or the output of a training pair, does not fit.
    """
    shapes = store.pair_shapes[pairs].astype(np.int64).reshape(-1, 2, 2)
    large = shapes.max(axis=2) > side
    asked = np.stack((np.ones(len(pairs), bool), store.pair_training[pairs]), axis=1)
    for pair, which in np.argwhere(large & asked)[:1].tolist():
        task, (height, width) = store.groups[store.pair_groups[pairs[pair]]], shapes[pair, which].tolist()
        raise ValueError(f"task {task.name}: a {height} x {width} grid does not fit a canvas of side {side}")
    shapes[large] = 0
    tokens = np.concatenate(([PAD, EOS], store.cells + np.uint8(COLOUR_OFFSET))).astype(np.uint8)
    bank = np.zeros((len(pairs), 8, 2, 2, side, side + 1), np.uint8)  # zero is PAD
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        for t in range(8):
            places = _places(shapes[part], store.pair_offsets[pairs[part]], t, side)
            bank[part, t, :, 1, :, :side] = tokens[places]
    return bank


def _places(shapes: Integers, offsets: Integers, t: int, side: int) -> Integers:
    """Where each canvas cell's token stands among PAD, EOS and the cells of all grids, [n, 2, side, side].

    `shapes` [n, 2, 2] and `offsets` [n, 2] are of grids that dihedral element `t` turns and that sit at (0, 0). The
    cells of a turned grid stand at equal distances along its rows and along its columns.
    """
    (corner, right), (below, _) = dihedral(np.arange(6).reshape(2, 3), t)[:2, :2].tolist()
    height, width = shapes[..., 0], shapes[..., 1]
    first = offsets + (corner // 3) * (height - 1) * width + (corner % 3 // 2) * (width - 1)
    down, across = (np.sign(step - corner) * (width if abs(step - corner) == 3 else 1) for step in (below, right))
    sizes = (height, width) if DIHEDRAL_KEEPS_SHAPE[t] else (width, height)
    lines = np.arange(side)
    within_rows, within_columns = (lines < size[..., None] for size in sizes)
    ends_rows, ends_columns = (lines == size[..., None] for size in sizes)
    steps = (first[..., None] + np.multiply.outer(down, lines))[..., None]
    steps = steps + (np.multiply.outer(across, lines))[..., None, :]
    border = ends_rows[..., None] & within_columns[..., None, :] | within_rows[..., None] & ends_columns[..., None, :]
    return np.where(within_rows[..., None] & within_columns[..., None, :], steps + 2, border)


def _token_tables(permutations: NDArray[np.uint8]) -> NDArray[np.int32]:
    """What every token becomes in inputs and in labels, int32[2, b, VOCAB_SIZE]."""
    tables = np.empty((2, len(permutations), VOCAB_SIZE), np.int32)
    tables[0, :, PAD], tables[1, :, PAD] = PAD, IGNORE_LABEL
    tables[:, :, EOS] = EOS
    tables[:, :, COLOUR_OFFSET:] = permutations + np.uint8(COLOUR_OFFSET)
    return tables


class ArcSource:
    """The training examples of some groups of a store on windows of one size."""

    vocab_size = VOCAB_SIZE

    def __init__(
        self,
        store: ArcStore,
        *,
        seed: int,
        batch_size: int,
        device: Device,
        side: int = CANVAS_SIDE,
        groups: Integers | None = None,
        task_rows: bool = False,
        own_colours: float = 0.0,
        mixed: bool = False,
        generated: float = 0.0,
    ) -> None:
        """See ArcBatches and Sampler; raises ValueError as they do. With `task_rows` views are drawn afresh."""
        self.sampler = Sampler(
            store,
            seed=seed,
            batch_size=batch_size,
            groups=groups,
            side=side,
            fresh_views=task_rows,
            own_colours=own_colours,
            mixed=mixed,
            generated=generated,
        )
        self.batches = ArcBatches(store, device, side, groups, task_rows)
        self.batch_size, self.side, self.seq_len = self.sampler.batch_size, side, self.batches.seq_len
        self.num_puzzles = len(store.groups if task_rows else store.puzzle_groups)

    def offer(self, step: int, slots: slice) -> Batch:
        """The examples offered to `slots` (within 0..batch_size) at `step`."""
        return self.batches.make(self.sampler.rows(step, slots))


def sources_by_side(
    store: ArcStore, *, seed: int, batch_size: int, multiple: int = 1, mixed: bool = False, **shared: Any
) -> list[ArcSource]:
    """One source for every canvas size of the groups that train, smallest first, sharing `batch_size` slots.

    Every size gets a positive multiple of `multiple` slots (so that as many processes share them evenly), as close as
    that allows to its share. That is its part of the training pairs, so that an epoch takes every size about as many
    steps. If `mixed`, a task weighs 1 / side, which lies between as many examples for every task and as much work.
    What else an ArcSource takes is `shared`. Raises ValueError when the slots cannot be shared so, or when there is
    nothing to train on.
    """
    sides = np.array([group.side for group in store.groups])
    sizes, examples = np.unique(sides[store.pair_groups[store.pair_training]], return_counts=True)
    if mixed:
        tasks = np.unique(store.pair_groups[store.pair_training])
        examples = np.unique(sides[tasks], return_counts=True)[1] / sizes
    portions, rest = divmod(batch_size, multiple) if multiple > 0 else (0, 0)
    if rest or portions < len(sizes) or not len(sizes):
        raise ValueError(
            f"{batch_size} slots cannot be shared among {len(sizes)} canvas sizes in multiples of {multiple}"
        )
    shares = np.ones(len(sizes), np.int64)
    for _ in range(portions - len(sizes)):
        shares[np.argmax(examples / shares)] += 1
    shares *= multiple
    return [
        ArcSource(
            store,
            # Sizes must not draw the same numbers; SeedSequence is stable in every numpy version.
            seed=int(np.random.SeedSequence((seed, side)).generate_state(1, np.uint64)[0]),
            batch_size=share,
            side=side,
            groups=np.flatnonzero(sides == side),
            mixed=mixed,
            **shared,
        )
        for side, share in zip(sizes.tolist(), shares.tolist(), strict=True)
    ]


# Sudokus and mazes ----------------------------------------------------------------------------------------------------


def shuffled(rows: BoardRows, bits: RandomBits) -> BoardRows:
    """Sudokus, each shuffled as data_prep.sudoku.shuffles reads its random bits [b, n]."""
    cells, tokens = shuffles(bits, math.isqrt(rows.questions.shape[1]))
    # Boards, and what their tokens become, are looked up as if laid end to end, which is fastest.
    numbers = np.arange(len(rows))[:, None]
    places, changes = cells + numbers * cells.shape[1], numbers * tokens.shape[1]
    questions, answers = (tokens.take(boards.take(places) + changes) for boards in (rows.questions, rows.answers))
    return BoardRows(questions, answers, rows.ratings)


def eight_views(mazes: BoardRows) -> BoardRows:
    """Every maze eight times: as it is, turned and mirrored, solved again in each view (half a millisecond a maze)."""
    questions, answers = views(mazes.questions)
    answers[:, 0] = mazes.answers  # a published label stays as it is, whatever order it follows
    cells = questions.shape[2]
    return BoardRows(questions.reshape(-1, cells), answers.reshape(-1, cells), mazes.ratings.repeat(8))


class BoardSource:
    """The training examples of a dataset of Sudokus or mazes, one puzzle id for all."""

    num_puzzles = 1

    def __init__(self, store: BoardStore, *, seed: int, batch_size: int, device: Device, augment: bool = True) -> None:
        """See BoardSampler. Boards are small, so the CPU changes them; without `augment` they stay as they are."""
        self.vocab_size, self.seq_len, self.batch_size = store.vocab_size, store.seq_len, batch_size
        self._device, self._shuffles = torch.device(device), augment and store.kind == "sudoku"
        boards = BoardRows(*map(np.asarray, (store.train.questions, store.train.answers, store.train.ratings)))
        self._boards = eight_views(boards) if augment and store.kind == "maze" else boards
        self._views = len(self._boards) // len(boards)
        bits = bits_per_shuffle(store.side) if self._shuffles else 1
        self.sampler = BoardSampler(len(boards), bits, seed=seed, batch_size=batch_size)

    def offer(self, step: int, slots: slice) -> Batch:
        """The examples offered to `slots` (within 0..batch_size) at `step`."""
        puzzles, bits = self.sampler.draw(step, slots)
        if self._shuffles:
            return board_batch(shuffled(self._boards[puzzles], bits), self._device)
        # The highest three bits name one of the views.
        chosen = puzzles * self._views + (bits[:, 0] >> np.uint64(61)).astype(np.int64) % self._views
        return board_batch(self._boards[chosen], self._device)


def board_batch(rows: BoardRows, device: torch.device) -> Batch:
    """Boards as they are, as one batch."""
    inputs, labels = (upload(cells, device).int() for cells in (rows.questions, rows.answers))
    return Batch(inputs, labels, torch.zeros(len(rows), dtype=torch.int64, device=device))


# (questions, answers), each uint8[n, L] -> bool[n]: right by the rules, whatever the label says.
RULES: dict[str, Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.bool_]]] = {
    "sudoku": is_valid,
    "maze": is_valid_shortest,
}


# Datasets -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingData:
    """What a run is trained on."""

    store: ArcStore | BoardStore
    parts: list[Part]
    examples_per_epoch: int
    names: RowNames | None = None  # what each embedding row stands for; None where there is one row
    training_tasks: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def planned_steps(self, config: RunConfig) -> int:
        """Optimiser steps of the whole run: `train.steps`, or as many as `train.epochs` take."""
        return config.train.steps or max(1, config.train.epochs * self.examples_per_epoch // config.train.batch_size)


def open_training_data(folder: Path, config: RunConfig, accelerator: Accelerator) -> TrainingData:
    """Open the dataset in `folder`; raises InputError when it is none, or is not what `config` is for."""
    store, device = open_store(folder), accelerator.device
    multiple = math.lcm(SHARED_BY, accelerator.num_processes)
    return (
        arc_data(store, config, device, multiple) if isinstance(store, ArcStore) else board_data(store, config, device)
    )


def arc_data(store: ArcStore, config: RunConfig, device: torch.device, multiple: int = SHARED_BY) -> TrainingData:
    """An ARC dataset on the full canvas, or on windows: a part for each size, with a `multiple` of slots."""
    train, windows, task_rows = config.train, config.train.canvas != "full", config.model.embedding_rows == "task"
    if windows and config.model.mixer != "attention":
        raise InputError(
            f"train.canvas {train.canvas} with model.mixer {config.model.mixer}: windows need attention, expected full"
        )
    settings: dict[str, Any] = {"seed": config.seed, "batch_size": train.batch_size, "device": device}
    settings |= {"task_rows": task_rows, "own_colours": train.own_colours, "mixed": train.sampling == "mixed"}
    settings["generated"] = train.generated_share
    try:
        sources = sources_by_side(store, multiple=multiple, **settings) if windows else [ArcSource(store, **settings)]
    except ValueError as error:
        raise InputError(f"this dataset and these settings: {error}") from error
    _check(config, "arc", sources[0].vocab_size, max(source.seq_len for source in sources), windows)
    return TrainingData(
        store,
        [Part(source, source.batch_size) for source in sources],
        int(store.pair_training.sum()),
        RowNames.of_owners(store.demonstration_digests()) if task_rows else RowNames.of_puzzles(store),
        store.training_digests(),
        {name: store.manifest.get(name) for name in FACTS},
    )


def board_data(store: BoardStore, config: RunConfig, device: torch.device) -> TrainingData:
    """A Sudoku or maze dataset; all its puzzles share one embedding row."""
    if config.model.embedding_rows == "task":
        raise InputError(f"model.embedding_rows task: a dataset of kind {store.kind} has no tasks, expected puzzle")
    if not len(store.train):
        raise InputError(f"a dataset of kind {store.kind} without puzzles to train on, expected at least one")
    train = config.train
    source = BoardSource(store, seed=config.seed, batch_size=train.batch_size, device=device, augment=train.augment)
    _check(config, store.kind, source.vocab_size, source.seq_len)
    facts = {name: store.manifest.get(name) for name in ("source", "seed", "generator")}
    return TrainingData(store, [Part(source, source.batch_size)], len(store.train), facts=facts)


def _check(config: RunConfig, kind: str, vocab_size: int, tokens: int, window: bool = False) -> None:
    model = config.model
    if model.vocab_size != vocab_size or (tokens > model.seq_len if window else tokens != model.seq_len):
        raise InputError(
            f"the dataset ({kind}) has {tokens} tokens of {vocab_size} kinds, "
            f"the model is for {model.seq_len} of {model.vocab_size}: choose a preset for this data"
        )
