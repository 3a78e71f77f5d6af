"""Heads: hidden vectors to distributions over tokens."""
