"""People's images on their way in: which files are meant, archives, decoding, batches of pixels."""
