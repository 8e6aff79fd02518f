"""Whitened embeddings, in which directions that vary among all images count less.

They separate reviewed categories better than the embeddings do.
"""

import numpy as np

from shoal.arrays import Floats

N_COMPONENTS = 128

# Maximum number of rows from which the principal components are computed
MAX_ANALYZED = 5_000

BLOCK_ROWS = 1 << 16


def whitened(vectors: Floats) -> Floats:
    """Return (N, C) unit rows: the first principal components of the directions of rows (N, D),
    each divided by its standard deviation, to which the average over all columns is added."""
    dtype = np.result_type(vectors, np.float32)  # float16 is for storage only
    some = unit(np.asarray(vectors[:: -(-len(vectors) // MAX_ANALYZED)], dtype))
    mean = some.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov(some.T).reshape(some.shape[1], -1))
    axes = axes / np.sqrt(np.maximum(variances.clip(min=0) + variances.mean(), 1e-12))
    axes = axes[:, -N_COMPONENTS:].astype(dtype)
    starts = range(0, len(vectors), BLOCK_ROWS)
    blocks = (np.asarray(vectors[start : start + BLOCK_ROWS], dtype) for start in starts)
    return np.concatenate([unit((unit(block) - mean) @ axes) for block in blocks])


def unit(rows: Floats) -> Floats:
    """Return rows divided by their norm; zero rows stay zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
