"""May this file be decoded, and how large is its image? Headers, limits, and the gate before the decoders."""
