"""Generators of tasks that do not exist, each with a way of its own to behave, as data_prep.generate calls them."""

import os
import random
import signal

Example = dict[str, list[list[int]]]


def example(rng: random.Random, height: int, width: int) -> Example:
    """Cells by chance, and the grid turned upside down."""
    rows = [[rng.randrange(10) for _ in range(width)] for _ in range(height)]
    return {"input": rows, "output": rows[::-1]}


def generate_plain(rng: random.Random, low: float, high: float) -> Example:
    return example(rng, 5, 7)


def generate_wide(rng: random.Random, low: float, high: float) -> Example:
    return example(rng, 3, rng.randrange(5, 16))


def generate_harder(rng: random.Random, low: float, high: float) -> Example:
    return example(rng, 3, round(2 + 10 * rng.uniform(low, high)))


def generate_few(rng: random.Random, low: float, high: float) -> Example:
    return {"input": [[rng.randrange(3)]], "output": [[4]]}


def generate_large(rng: random.Random, low: float, high: float) -> Example:
    return example(rng, 30, 29)


def generate_wrong(rng: random.Random, low: float, high: float) -> Example:
    return {"input": [[10]], "output": [[1]]}


def unsteady(rng: random.Random, low: float, high: float) -> Example:
    """Raises ValueError now and then."""
    if rng.random() < 0.3:
        raise ValueError("bad luck")
    return example(rng, 5, 7)


generate_unsteady = unsteady


def generate_halts(rng: random.Random, low: float, high: float) -> Example:
    """Where `unsteady` raises, runs forever and cannot be interrupted from within."""
    try:
        return unsteady(rng, low, high)
    except ValueError:
        while True:
            try:
                while True:
                    pass
            except BaseException:
                continue


def generate_killed(rng: random.Random, low: float, high: float) -> Example:
    """Where `unsteady` raises, the process is killed."""
    try:
        return unsteady(rng, low, high)
    except ValueError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise
