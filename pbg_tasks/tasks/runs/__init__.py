"""Trained models with their graphs: nights, and directories of PBG."""
