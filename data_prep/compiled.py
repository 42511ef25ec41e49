"""Compiling the generators' loops with numba, which only building a dataset needs.

Importing this module imports numba: reading a dataset, training and solving must not do so.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def compiled(function: F) -> F:
    """`function` compiled to machine code on its first call; it runs without the interpreter lock.

    The code is not cached on disk: numba puts it beside the source, which may be an installed, read-only
    package, and it misses changes in functions of other files.
    """
    return cast(F, numba.njit(nogil=True)(function))


def in_parallel(make: Callable[[np.random.Generator], T], *, seed: int, workers: int) -> Iterator[T]:
    """make(generator) for chunk 0, 1, 2, … without end, in order, on `workers` threads.

    Chunk i draws from its own counter-based generator of (seed, i), so the number of workers changes
    nothing but the time.
    """

    def chunk(number: int) -> T:
        return make(np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64))))

    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(chunk, number) for number in range(2 * workers)]
        number = len(waiting)
        try:
            while True:
                yield waiting.pop(0).result()
                waiting.append(pool.submit(chunk, number))
                number += 1
        finally:
            for future in waiting:
                future.cancel()
