"""Connections between ranks: frames, handshake, listener."""
