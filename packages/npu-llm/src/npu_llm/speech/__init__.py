"""Speech recognition: from audio samples to transcripts."""
