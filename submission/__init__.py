"""From a trained model to a valid, scored ARC Prize submission."""
