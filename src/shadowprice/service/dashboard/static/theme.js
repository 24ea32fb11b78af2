// Applies the theme that the user chose, before the page is drawn.
(function () {
  try {
    const chosen = localStorage.getItem("shadowprice-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage, the theme follows the system's setting.
  }
})();
