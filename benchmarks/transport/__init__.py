"""Speed of frames, frames over TLS, and gRPC between ranks."""
