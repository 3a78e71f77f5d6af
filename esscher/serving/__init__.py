"""A tilted model behind a port: what is asked, what is drawn for it, and who may ask how much.

config       limits, without torch
requests     what a request asks, or why it is refused
engine       draws for a request, watched and stopped in time
endpoint     the web application
"""
