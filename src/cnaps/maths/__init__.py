"""The closed-form part of the model, written once for numpy and torch: statistics, heads, leave-one-out, trust.

Research runs it on tensors, with gradients; the runtime on numpy arrays, without torch.
"""
