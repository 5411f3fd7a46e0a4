"use strict";
// For all pages, after query.js. The pages read without it; it adds filtering, keys, deep links and themes.
(() => {
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;
  const data = window.NPU_MATRIX;
  // Places in a row of the grid's data (see grid.py).
  const [ID, TITLE, PAGE, AXES, VERDICTS, CHANGES, REASONS] = [0, 1, 2, 6, 7, 8, 9];
  const ABSENT = "-";
  const VIRTUAL_FROM = 150;
  const OVERSCAN = 6;

  // ---- themes ----------------------------------------------------------------------------------------------
  const THEMES = ["", "light", "dark"];
  const memory = {
    get(store, name) { try { return store().getItem(name) || ""; } catch { return ""; } },
    set(store, name, value) { try { store().setItem(name, value); } catch { /* a private window keeps nothing */ } },
  };
  function setTheme(theme) {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    $("theme").textContent = theme || "system";
    $("theme").setAttribute("aria-label", `Theme: ${theme || "follow the system"}`);
  }
  function nextTheme() {
    const theme = THEMES[(THEMES.indexOf(root.dataset.theme || "") + 1) % THEMES.length];
    memory.set(() => localStorage, "npu-matrix-theme", theme);
    setTheme(theme);
  }

  const { compile, select, order, haystack, QueryError } = data ? makeQueries(data) : {};

  // ---- grid ------------------------------------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  function glyph(mark) {
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of [["class", `g m-${mark}`], ["viewBox", "0 0 16 16"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
    const use = document.createElementNS(SVG, "use");
    use.setAttribute("href", `#g-${mark}`);
    svg.append(use);
    return svg;
  }
  const page = (row) => `cells/${row[PAGE] || row[ID]}.html`;

  // Tiles that look alike are made once and cloned.
  const stamps = new Map();
  function stamp(check, code, proofCode, changed) {
    const key = `${check}${code}${proofCode}${changed}`;
    if (stamps.has(key)) return stamps.get(key);
    const [mark, label, word] = data.marks[code];
    const proof = data.evidence[proofCode];
    const said = `${data.checks[check][0]}: ${label}${proof ? `, ${proof[1]}` : ""}${changed ? `, ${changed}` : ""}`;
    const link = make("a", { class: `tile m-${mark} e-${proof ? proof[0] : "none"}${changed ? " changed" : ""}`, tabindex: "-1" },
      glyph(mark), make("span", { class: "hidden" }, said), make("span", { class: "w", "aria-hidden": "true" }, word));
    if (proof) link.append(make("span", { class: `tag e-${proof[0]}`, "aria-hidden": "true" }, proof[2]));
    link.title = `${data.checks[check][0]}: ${label}${proof ? ` (${proof[1]})` : ""}`;
    stamps.set(key, link);
    return link;
  }
  function tile(place, check, test) {
    const row = data.rows[place];
    const code = row[VERDICTS][check * 2];
    if (code === ABSENT) return make("span", { class: "void", title: "not planned for this cell" }, "·");
    const changed = row[CHANGES] ? { b: "broken", f: "fixed", l: "lost" }[row[CHANGES][check]] || "" : "";
    const link = stamp(check, code, row[VERDICTS][check * 2 + 1], changed).cloneNode(true);
    link.href = `${page(row)}#${data.checks[check][2]}`;
    if (row[REASONS] && row[REASONS][check] !== undefined) link.title += `. ${data.reasons[row[REASONS][check]]}`;
    if (test && !test(place, check)) link.classList.add("dim");
    return link;
  }
  function rowNode(place, index, test) {
    const row = data.rows[place];
    const head = make("a", { href: page(row), tabindex: "-1", title: row[TITLE] || row[ID] }, make("b", {}, row[TITLE] || row[ID]), make("small", {}, row[ID]));
    const node = make("tr", { role: "row", "aria-rowindex": index + 3, "data-index": index },
      make("th", { role: "rowheader", scope: "row", class: "cellname" }, head));
    for (const axis of data.shown) {
      const value = data.values[row[AXES][axis]] ?? "—";
      node.append(make("td", { role: "gridcell", class: "axis", title: value }, value));
    }
    data.checks.forEach((check, i) => {
      const first = i === 0 || data.checks[i - 1][1] !== check[1];
      node.append(make("td", { role: "gridcell", class: first ? "first" : null, "data-check": check[0] }, tile(place, i, test)));
    });
    return node;
  }

  const state = { query: "", test: null, shown: [], from: -1, to: -1, height: 46, at: [0, 0], view: "" };
  const columns = () => data.checks.length + 1;
  const stops = (node) => [node.querySelector("th a"), ...[...node.querySelectorAll("td[data-check]")].map((cell) => cell.firstElementChild)];

  function padding(rows, height) {
    const cell = make("td", { colspan: String(1 + data.shown.length + data.checks.length), role: "presentation" });
    cell.style.height = `${rows * height}px`;
    return make("tr", { class: "pad", role: "presentation", "aria-hidden": "true" }, cell);
  }
  // Draws the rows in sight; all of them while there are few, so that the browser's own search finds everything.
  function draw(force) {
    const count = state.shown.length;
    const body = $("rows");
    let [from, to] = [0, count];
    if (count > VIRTUAL_FROM) {
      const above = -body.getBoundingClientRect().top;
      from = Math.min(Math.max(0, Math.floor(above / state.height) - OVERSCAN), Math.max(0, count - OVERSCAN));
      to = Math.min(count, from + Math.ceil(window.innerHeight / state.height) + 2 * OVERSCAN);
    }
    if (!force && from === state.from && to === state.to) return;
    $("grid").classList.toggle("virtual", data.rows.length > VIRTUAL_FROM);
    const focused = body.contains(document.activeElement);
    [state.from, state.to] = [from, to];
    const rows = [];
    for (let index = from; index < to; index++) rows.push(rowNode(state.shown[index], index, state.test));
    if (from > 0) rows.unshift(padding(from, state.height));
    if (to < count) rows.push(padding(count - to, state.height));
    if (!count) rows.push(make("tr", { role: "row" }, make("td", { role: "gridcell", class: "empty", colspan: String(1 + data.shown.length + data.checks.length) }, "No cell matches. Esc clears the filter.")));
    body.replaceChildren(...rows);
    if (count > VIRTUAL_FROM) {
      const sample = body.querySelector("tr[data-index]");
      if (sample && Math.abs(sample.offsetHeight - state.height) > 1) { state.height = sample.offsetHeight; return draw(true); }
    }
    const stop = stopAt(...state.at) || body.querySelector("a");
    if (stop) { stop.tabIndex = 0; if (focused) stop.focus({ preventScroll: true }); }
  }
  function stopAt(index, column) {
    const node = $("rows").querySelector(`tr[data-index="${index}"]`);
    return node && stops(node)[column];
  }
  function go(index, column) {
    if (!state.shown.length) return;
    index = Math.min(Math.max(0, index), state.shown.length - 1);
    column = Math.min(Math.max(0, column), columns() - 1);
    for (const old of $("rows").querySelectorAll('a[tabindex="0"]')) old.tabIndex = -1;
    state.at = [index, column];
    if (index < state.from || index >= state.to) {
      const top = $("rows").getBoundingClientRect().top + window.scrollY;
      window.scrollTo(0, top + index * state.height - window.innerHeight / 2);
      draw(true);
    }
    const stop = stopAt(index, column);
    if (!stop) return;
    stop.tabIndex = 0;
    stop.focus({ preventScroll: true });
    stop.closest("tr").scrollIntoView({ block: "nearest" });
    save();
  }

  function filter(query) {
    const box = $("q-error");
    let test;
    try { test = compile(query); } catch (error) {
      if (!(error instanceof QueryError)) throw error;
      box.textContent = error.message;
      box.hidden = false;
      $("q").setAttribute("aria-invalid", "true");
      return;
    }
    box.hidden = true;
    $("q").removeAttribute("aria-invalid");
    const { shown, matches } = select(test);
    Object.assign(state, { query, test, shown, at: [0, 0] });
    // Results start at the top of the grid, wherever one had scrolled to.
    const top = $("grid-box").getBoundingClientRect().top - 60;
    if (top < 0) scrollBy(0, top);
    const say = (n) => n.toLocaleString("en");
    $("q-status").textContent = test ? `${say(shown.length)} of ${say(data.rows.length)} cells, ${say(matches)} checks` : `${say(shown.length)} cells, ${say(matches)} checks`;
    $("grid").setAttribute("aria-rowcount", String(shown.length + 2));
    for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(chip.dataset.query === query));
    if (state.view) pivot(); else draw(true);
  }

  // ---- axis by axis ----------------------------------------------------------------------------------------
  function pivot() {
    const [down, across] = [data.axes.indexOf($("down").value), data.axes.indexOf($("across").value)];
    const counts = new Map();
    const values = [new Set(), new Set()];
    for (const place of state.shown) {
      const row = data.rows[place];
      const key = [row[AXES][down], row[AXES][across]];
      key.forEach((value, i) => values[i].add(value));
      const cell = counts.get(key.join()) || counts.set(key.join(), {}).get(key.join());
      for (let check = 0; check < data.checks.length; check++) {
        const code = row[VERDICTS][check * 2];
        const kind = row[VERDICTS].slice(check * 2, check * 2 + 2);
        if (code !== ABSENT && (!state.test || state.test(place, check))) cell[kind] = (cell[kind] || 0) + 1;
      }
    }
    const name = (n) => data.values[n] ?? "—";
    const [left, top] = values.map((set) => [...set].sort((a, b) => order(name(b), name(a))));
    const body = left.map((y) => make("tr", {}, make("th", { scope: "row" }, name(y)), ...top.map((x) => {
      const cell = counts.get([y, x].join());
      if (!cell) return make("td", {}, make("span", { class: "void", title: "no cell" }, "·"));
      const button = make("button", { type: "button", "data-pivot": `${data.axes[down]}="${name(y)}" & ${data.axes[across]}="${name(x)}"` });
      for (const [code, [mark, label]] of Object.entries(data.marks)) {
        // Evidence stays apart: passes on hardware and in simulation are never one number.
        for (const proofCode of [...Object.keys(data.evidence), "-"]) {
          const count = cell[code + proofCode];
          if (!count) continue;
          const proof = data.evidence[proofCode];
          const said = `${label}${proof ? `, ${proof[1]}` : ""}`;
          const node = make("span", { class: `n m-${mark}`, title: said }, glyph(mark), String(count), make("span", { class: "hidden" }, ` ${said}`));
          if (proof) node.append(make("span", { class: `tag e-${proof[0]}`, "aria-hidden": "true" }, proof[2]));
          button.append(node);
        }
      }
      return make("td", {}, button);
    })));
    const corner = make("th", { scope: "col" }, `${data.axes[down]} \\ ${data.axes[across]}`);
    $("pivot-box").replaceChildren(make("table", { class: "pivot" }, make("thead", {}, make("tr", {}, corner, ...top.map((x) => make("th", { scope: "col" }, name(x))))), make("tbody", {}, ...body)));
  }
  function setView(view) {
    const parts = view.split(",");
    state.view = parts.length === 2 && parts.every((axis) => data.axes.includes(axis)) ? view : "";
    $("view").value = state.view ? "axes" : "";
    $("axes").hidden = !state.view;
    $("grid-box").hidden = Boolean(state.view);
    $("pivot-box").hidden = !state.view;
    if (state.view) { [$("down").value, $("across").value] = parts; pivot(); } else draw(false);
  }

  // ---- deep links ------------------------------------------------------------------------------------------
  function save() {
    const parts = new URLSearchParams();
    if (state.query) parts.set("q", state.query);
    if (state.view) parts.set("view", state.view);
    const row = data.rows[state.shown[state.at[0]]];
    if (row && (state.at[0] || state.at[1])) parts.set("at", state.at[1] ? `${row[ID]}/${data.checks[state.at[1] - 1][0]}` : row[ID]);
    const hash = parts.size ? `#${parts}` : "";
    memory.set(() => sessionStorage, "npu-matrix-grid", hash);
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname);
  }
  function restore() {
    const parts = new URLSearchParams(location.hash.slice(1));
    $("q").value = parts.get("q") || "";
    filter($("q").value);
    setView(parts.get("view") || "");
    const at = parts.get("at");
    if (!at) return;
    const index = state.shown.findIndex((place) => at === data.rows[place][ID] || at.startsWith(`${data.rows[place][ID]}/`));
    if (index < 0) return;
    const name = at.slice(data.rows[state.shown[index]][ID].length + 1);
    go(index, name ? data.checks.findIndex((check) => check[0] === name) + 1 : 0);
  }

  // ---- keys ------------------------------------------------------------------------------------------------
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0] };
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || "");
    if (event.key === "?" && !typing) $("help").showModal();
    else if (event.key === "t" && !typing) nextTheme();
    else if (!data || !$("grid")) return;
    else if (event.key === "/" && !typing) $("q").focus();
    else if (event.key === "Escape" && (typing || state.query)) { $("q").value = ""; filter(""); save(); }
    else if (event.key === "ArrowDown" && document.activeElement === $("q")) go(0, 0);
    else if ($("rows").contains(document.activeElement)) {
      const [index, column] = state.at;
      if (event.key in MOVES) go(index + MOVES[event.key][0], column + MOVES[event.key][1]);
      else if (event.key === "Home") go(index, 0);
      else if (event.key === "End") go(index, columns() - 1);
      else return;
    } else return;
    event.preventDefault();
  }

  // ---- copying ---------------------------------------------------------------------------------------------
  async function copy(button) {
    const text = button.dataset.copy;
    try { await navigator.clipboard.writeText(text); } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }

  // ---- start -----------------------------------------------------------------------------------------------
  function startGrid() {
    let waiting = 0;
    $("q").addEventListener("input", () => {
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(() => { filter($("q").value); save(); });
    });
    for (const id of ["down", "across"]) $(id).append(...data.axes.map((axis) => make("option", { value: axis }, axis)));
    if (data.axes.length < 2) $("view").parentElement.hidden = true;
    const pair = () => { setView(`${$("down").value},${$("across").value}`); save(); };
    $("down").addEventListener("change", pair);
    $("across").addEventListener("change", pair);
    $("view").addEventListener("change", () => {
      const [down, across] = [...data.shown, ...data.axes.keys()].filter((axis, i, all) => all.indexOf(axis) === i);
      setView($("view").value ? `${data.axes[down]},${data.axes[across]}` : "");
      save();
    });
    document.addEventListener("click", (event) => {
      const chip = event.target.closest(".chip, [data-pivot]");
      if (!chip) return;
      const wanted = chip.dataset.pivot || chip.dataset.query;
      $("q").value = state.query === wanted ? "" : chip.dataset.pivot && state.query ? `(${state.query}) & ${wanted}` : wanted;
      if (chip.dataset.pivot) setView("");
      filter($("q").value);
      save();
    });
    $("rows").addEventListener("focusin", (event) => {
      const node = event.target.closest("tr[data-index]");
      if (node) state.at = [Number(node.dataset.index), Math.max(0, stops(node).indexOf(event.target))];
    });
    addEventListener("scroll", () => draw(false), { passive: true });
    addEventListener("resize", () => draw(false));
    addEventListener("hashchange", restore);
    restore();
    // The first search for a word reads every row; do that before somebody types.
    let place = 0;
    const read = (idle) => {
      while (place < data.rows.length && idle.timeRemaining() > 2) haystack(place++);
      if (place < data.rows.length) requestIdleCallback(read);
    };
    if (window.requestIdleCallback) requestIdleCallback(read);
  }
  function startCell() {
    const back = $("back");
    if (back) back.hash = memory.get(() => sessionStorage, "npu-matrix-grid");
    const reveal = () => {
      const target = location.hash.length > 1 && $(decodeURIComponent(location.hash.slice(1)));
      const closed = target && target.closest("details:not([open])");
      if (closed) { closed.open = true; target.scrollIntoView(); }
    };
    addEventListener("hashchange", reveal);
    // What went wrong stands at the end of a log.
    for (const log of document.querySelectorAll(".loglines")) {
      const end = () => { log.scrollTop = log.scrollHeight; };
      log.closest("details").addEventListener("toggle", end, { once: true });
      end();
    }
    reveal();
  }

  root.classList.add("js");
  const linked = new URLSearchParams(location.hash.slice(1)).get("theme");
  setTheme(THEMES.includes(linked) ? linked : memory.get(() => localStorage, "npu-matrix-theme"));
  $("theme").addEventListener("click", nextTheme);
  $("help-button").addEventListener("click", () => $("help").showModal());
  const helpIn = (chinese) => { for (const part of document.querySelectorAll("#help .help-columns")) part.hidden = (part.lang === "en") === chinese; };
  let chinese = /^zh\b/.test(navigator.language);
  helpIn(chinese);
  $("help-language").addEventListener("click", () => { chinese = !chinese; helpIn(chinese); });
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => { const button = event.target.closest(".copy-button"); if (button) copy(button); });
  if (data && $("grid")) startGrid(); else startCell();
})();
