"""posterity: Bayesian deep learning for PyTorch. Any network, any posterior, one interface."""
