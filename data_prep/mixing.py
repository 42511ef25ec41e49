"""Hashing arrays of numbers, for digests that must not change when cells change places."""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


def mix(values: Hashes) -> Hashes:
    """A bijection of 64-bit numbers in which every input bit moves about half of the output bits.

    The constants are those of the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hashes(count: int, purpose: int) -> Hashes:
    """`count` fixed random-looking numbers, others for each purpose (below 2**32)."""
    return mix(np.arange(count, dtype=np.uint64) + np.uint64(purpose << 32))
