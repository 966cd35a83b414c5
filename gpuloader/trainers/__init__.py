"""`GPULoader` in other Trainers: those of Lightning's two packages, and Hugging Face's. Each needs its package."""
