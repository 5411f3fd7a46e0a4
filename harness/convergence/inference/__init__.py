"""Inference of a tiny gpt-oss model: the device's logits against the CPU's."""
