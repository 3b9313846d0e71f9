"""What people use every day: a fitted task, its file, the estimator, suggestions, reviews and reports."""
