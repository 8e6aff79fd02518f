"""Readers: from what users have (folders, tables, arrays, ready embeddings) to a `Collection` or `Embeddings`."""

from shoal.data.readers.embeddings import Embeddings, read_embeddings
from shoal.data.readers.labels import UNLABELED_NAMES
from shoal.data.readers.layouts import read_collection

__all__ = ["UNLABELED_NAMES", "Embeddings", "read_collection", "read_embeddings"]
