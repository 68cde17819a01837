// Follows the switch of Airflow's interface, which keeps its choice for the whole site; elsewhere the browser's theme counts.
"use strict";

// In a block: a page that takes the place of its outline runs this again in the same window.
{
  const THEME_KEY = "theme";

  const applyTheme = () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem(THEME_KEY);
    } catch {
      // no storage for this page, as in a file that was opened from a disk
    }
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
    document.dispatchEvent(new Event("theme"));
  };

  applyTheme();
  addEventListener("storage", (event) => event.key === THEME_KEY && applyTheme());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
}
