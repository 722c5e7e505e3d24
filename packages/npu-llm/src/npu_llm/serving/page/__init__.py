"""The page to try a server: page.html beside this, one file that needs no network."""
