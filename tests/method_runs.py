"""Run a whole method in one call."""

import torch

from shoal.methods.registry import get_method

CPU = torch.device("cpu")


def run_method(name, task, settings, **options):
    """Train a method on a task and cluster its images."""
    method = get_method(name)
    learned = method.represent(task, settings, device=CPU, **options)
    return method.cluster(learned, task.labels, settings, task.n_clusters)
