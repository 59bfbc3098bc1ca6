"""Programs that measure how fast Corral is, beside its peers: ``scripts/benchmark``."""
