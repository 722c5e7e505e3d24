"""Models that are one captured step: encoders and classifiers of text, images and sound."""
