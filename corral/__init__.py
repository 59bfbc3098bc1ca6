"""Corral: benchmarks of LLM agents against simulation-backed environments."""
