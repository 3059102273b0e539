"""Convolutional networks on CIFAR-10, beyond the paper, which gave it up."""
