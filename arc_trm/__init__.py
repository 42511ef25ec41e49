"""The Tiny Recursive Model: its family, training and checkpoints."""

from data_prep import check_python

__version__ = "0.1.0"

check_python()
