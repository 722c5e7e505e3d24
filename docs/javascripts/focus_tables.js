// Makes tables that are wider than the screen focusable, so that keys can scroll them.
document$.subscribe(() => {
  for (const place of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
  }
});
