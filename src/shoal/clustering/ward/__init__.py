"""Exact Ward linkage without an N² matrix; see docs/ward.md for the algorithm."""

from shoal.clustering.ward.linkage import ward_linkage
