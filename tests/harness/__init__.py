"""What tests, demo and bench share: a reference encoder, a daemon to talk to, real texts, raw HTTP/2 frames."""
