"""Images, collections of them on disk, and a reader for each data set."""
