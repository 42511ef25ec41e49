"""The Tiny Recursive Model: its family, training and checkpoints."""

__version__ = "0.1.0"
