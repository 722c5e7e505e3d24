"""Programs held against torch: what torch computes for a few tokens, and who compares."""
