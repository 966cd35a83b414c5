"""Feeds mutated images to the gate, to decoders and to the cut of JPEGs, in processes that may die; data to parsers.

Every mutant depends only on (seed, kind, number). These must hold:

- No process dies, hangs or runs out of memory.
- An image that passes the gate is decoded, or named as bad, and the others of its batch are decoded without it.
- Its pixels, and whether it is decoded, do not depend on the images around it or on what memory held before: each
  batch is decoded twice, in other batches, after other images, with other bytes in the memory that decoders get.
- What is left of a JPEG that is cut to a window has the pixels of the whole file there, or fails as it does.
- A JPEG that is decoded at 1/2, 1/4 or 1/8 has the size that follows from DALI's, or is left to DALI. Its pixels do not
  depend on memory, or on the rows below those that are needed.
- A parser refuses data only with the library's errors.

The mutants of a batch that breaks a rule are tried again, each alone. Those that then break it, too, are saved, and the
exit code is 1.
"""
