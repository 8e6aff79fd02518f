"""What people decided about a run: the log `review.jsonl`, its state, and a run with both. Imports
no torch."""
