"""Integrations with the Trainers of Lightning's two packages and of Hugging Face. Each module needs its package."""
