// Before anything is drawn: the colours that were chosen here the last time.
"use strict";
try {
  document.documentElement.dataset.theme = localStorage.getItem("ps-theme") || "system";
} catch {
  // Storage may be forbidden.
}
