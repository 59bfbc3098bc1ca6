"""Environments that come with Corral: simulations, puzzles and small examples."""
