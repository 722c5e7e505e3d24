"""From a captured graph to programs and what calls them: cut, built, judged, reported."""
