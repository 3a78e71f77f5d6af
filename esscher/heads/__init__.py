"""The last part of a network: hidden vectors to distributions over tokens."""
