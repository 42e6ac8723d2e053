"""Algebra: sums, moments, Grams and the surgeon; tensors in, tensors out."""
