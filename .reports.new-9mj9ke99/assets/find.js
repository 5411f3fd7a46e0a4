"use strict";
// Filters the rows of tables by words and by date: #find=WORDS&from=YYYY-MM-DD, so that a view can be shared.
(() => {
  const $ = (id) => document.getElementById(id);
  const rows = [...document.querySelectorAll("table.events tbody tr")];
  if (!$("find")) return;
  const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  function show(save) {
    const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const from = $("from") ? $("from").value : "";
    let shown = 0;
    for (const row of rows) {
      const when = (row.dataset.when || "").slice(0, 10);
      row.hidden = !(words.every((word) => text.get(row).includes(word)) && (!from || when >= from));
      shown += row.hidden ? 0 : 1;
    }
    $("found").textContent = words.length || from ? `${shown} of ${rows.length} entries` : "";
    if (!save) return;
    const parts = new URLSearchParams();
    if ($("find").value) parts.set("find", $("find").value);
    if (from) parts.set("from", from);
    history.replaceState(null, "", parts.size ? `#${parts}` : location.pathname);
  }
  function restore() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (!parts.has("find") && !parts.has("from")) return;
    $("find").value = parts.get("find") || "";
    if ($("from")) $("from").value = parts.get("from") || "";
    show(false);
  }
  for (const id of ["find", "from"]) if ($(id)) $(id).addEventListener("input", () => show(true));
  addEventListener("hashchange", restore);
  restore();
})();
