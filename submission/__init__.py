"""From a trained model to a valid, scored ARC Prize submission."""

from data_prep import check_python

check_python()
