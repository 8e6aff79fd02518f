"""Readers from folders, tables, arrays, shards and precomputed embeddings to `Collection` or
`Embeddings`."""

from shoal.data.readers.embeddings import (
    Embeddings,
    label_embeddings,
    read_embeddings,
    read_labels,
)
from shoal.data.readers.layouts import read_collection
