"""Connections between ranks: frames, handshake and listener."""
