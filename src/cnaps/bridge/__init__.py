"""Where research meets the runtime: a torch model written as a bundle, or used by the runtime as it is."""
