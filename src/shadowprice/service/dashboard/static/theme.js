// Before anything is drawn: the theme that was chosen, if one was.
(function () {
  try {
    const chosen = localStorage.getItem("shadowprice-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden; the screen's theme will do.
  }
})();
