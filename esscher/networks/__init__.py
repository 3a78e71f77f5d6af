"""Networks and their settings: tokens to hidden vectors, for whole sequences, streams and single decoding steps."""
