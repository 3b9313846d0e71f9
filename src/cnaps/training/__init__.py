"""Training: theta by full-way classification, phi by tasks; exact resume, one process or many."""
