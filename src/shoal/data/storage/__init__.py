"""Storage: where the images of a collection lie when they are no files of a local folder: a
bucket, the web, shards."""
