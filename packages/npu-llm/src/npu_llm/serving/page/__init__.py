"""The server's web page: page.html, a single file that needs no network."""
