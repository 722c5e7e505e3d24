"""The server's web page: page.html, a single file without external resources."""
