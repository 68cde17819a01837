"""Membership of a gang: meeting, heartbeats, loss of a rank."""
