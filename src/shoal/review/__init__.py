"""What people decided about a run: the log `review.jsonl`, the resulting state, and its replay.

Imports no torch.
"""
