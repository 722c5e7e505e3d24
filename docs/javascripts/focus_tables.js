// A table that is wider than the screen can be moved by keys: what scrolls can be focused.
document$.subscribe(() => {
  for (const place of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
  }
});
