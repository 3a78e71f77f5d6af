"""Networks and their settings: tokens to hidden vectors, in whole passes, along streams and in single steps."""
