"""Membership of a gang: meeting, heartbeats, and loss of a rank."""
