"""Models with one traced step: encoders and classifiers of text, images and audio."""
