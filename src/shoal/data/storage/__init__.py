"""Access to images in buckets, on the web and in shards."""
