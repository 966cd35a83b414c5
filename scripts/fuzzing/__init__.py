"""Feeds mutated images to the gate and to DALI, in processes that may die; and mutated data to parsers.

Every mutant depends only on (seed, kind, number). These must hold:

- No process dies, hangs or runs out of memory.
- An image that passes the gate is decoded, or triage names it, the graph refuses only that image, and the others of
  its batch are decoded without it.
- Its pixels, and whether it is decoded, do not depend on the images around it or on what memory held before: each
  batch is decoded twice, in other batches, after other images, with other bytes in the memory that decoders get.
- A parser refuses data only with the library's errors.

A batch that breaks a rule is tried again, each mutant alone. Mutants that then break it, too, are saved, and the exit
code is 1. JPEG 2000 is translated in its own process, and the rules hold for what that returns.
"""
