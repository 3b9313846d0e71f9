"""Answers over HTTP and over many images: the prediction server, decoding processes, safety, bulk prediction."""
