"""Priors, likelihoods, Gaussian families and the KL between them: pure functions and small frozen objects."""
