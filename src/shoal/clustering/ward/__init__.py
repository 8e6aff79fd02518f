"""Exact Ward linkage without an N² matrix; `linkage.py` is the way in, docs/ward.md the whole
story."""

from shoal.clustering.ward.linkage import ward_linkage

__all__ = ["ward_linkage"]
