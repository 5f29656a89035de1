"""What the documentation site needs beyond its generator."""
