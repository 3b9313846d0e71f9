"""The paper's experiments: a file a table or figure, and what they share."""
