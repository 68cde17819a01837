"""Embeddings to other tools and from them."""
