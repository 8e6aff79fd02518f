"""Readers: from what users have (folders, tables, arrays, ready embeddings) to a `Collection` or
`Embeddings`."""

from shoal.data.readers.embeddings import Embeddings, read_embeddings
from shoal.data.readers.layouts import read_collection
from shoal.data.readers.named import label_embeddings, read_names

__all__ = [
    "Embeddings",
    "label_embeddings",
    "read_collection",
    "read_embeddings",
    "read_names",
]
