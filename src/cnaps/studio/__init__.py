"""The studio: teach a classifier in the browser; and a server that answers predictions alone."""
