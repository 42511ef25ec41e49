"""Grids, tasks, augmentations, canvases and datasets; never imports torch."""
