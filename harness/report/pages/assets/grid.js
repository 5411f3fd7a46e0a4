"use strict";
// The grid of the overview, after query.js: one list of items, of which only those in sight are drawn, and its views.
// makeGrid(data, tools) gives { start, key }; data is what data/grid.js hands over, tools come from report.js.
const makeGrid = (data, { $, make, memory, say }) => {
  const { compile, select, order, haystack, QueryError } = makeQueries(data);
  // Places in a row of the grid's data (see grid.py).
  const [ID, TITLE, PAGE, AXES, VERDICTS, CHANGES, REASONS] = [0, 1, 2, 6, 7, 8, 9];
  const ABSENT = "-";
  const VIRTUAL_FROM = 150;
  const OVERSCAN = 6;
  // When the rows just out of sight are drawn, after those in sight were seen.
  const LATER_MS = 60;
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0] };

  // The tiers with the range of their checks, which are next to each other.
  const tiers = [];
  data.checks.forEach(([, tier], place) => {
    if (tiers.at(-1)?.name !== tier) tiers.push({ name: tier, from: place, to: place });
    tiers.at(-1).to = place + 1;
  });
  const state = { query: "", test: null, shown: [], items: [], view: "", open: new Set(), columns: [...data.shown], sort: "", group: "", from: -1, to: -1, at: [0, 0] };

  // ---- tiles -------------------------------------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  function glyph(mark) {
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of [["class", `g m-${mark}`], ["viewBox", "0 0 16 16"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
    const use = document.createElementNS(SVG, "use");
    use.setAttribute("href", `#g-${mark}`);
    svg.append(use);
    return svg;
  }
  const page = (row) => `cells/${row[PAGE] || row[ID]}.html`;
  const proofTag = (proof) => make("span", { class: `tag e-${proof[0]}`, "aria-hidden": "true" }, say(proof[2]));
  const value = (number) => data.short[number] ?? data.values[number] ?? "—";
  const codesOf = (place, check) => data.rows[place][VERDICTS].slice(check * 2, check * 2 + 2);

  // Tiles that look alike are made once and cloned.
  const stamps = new Map();
  const stamped = (key, build) => {
    if (!stamps.has(key)) stamps.set(key, build());
    return stamps.get(key).cloneNode(true);
  };
  function stamp(check, codes, changed) {
    const [mark, label, word] = data.marks[codes[0]];
    const proof = data.evidence[codes[1]];
    const said = `${data.checks[check][0]}: ${say(label)}${proof ? `, ${say(proof[1])}` : ""}${changed ? `, ${say(changed)}` : ""}`;
    const link = make("a", { class: `tile m-${mark} e-${proof ? proof[0] : "none"}${changed ? " changed" : ""}`, tabindex: "-1" },
      glyph(mark), make("span", { class: "hidden" }, said), make("span", { class: "w", "aria-hidden": "true" }, say(word)));
    if (proof) link.append(proofTag(proof));
    link.title = `${data.checks[check][0]}: ${say(label)}${proof ? ` (${say(proof[1])})` : ""}`;
    return link;
  }
  const nothing = () => make("span", { class: "void", title: say("not planned for this cell") }, "·");
  function tile(place, check) {
    const row = data.rows[place];
    const codes = codesOf(place, check);
    if (codes[0] === ABSENT) return nothing();
    const changed = row[CHANGES] ? { b: "broken", f: "fixed", l: "lost" }[row[CHANGES][check]] || "" : "";
    const link = stamped(`${check}${codes}${changed}`, () => stamp(check, codes, changed));
    link.href = `${page(row)}#${data.checks[check][2]}`;
    if (row[REASONS] && row[REASONS][check] !== undefined) link.title += `. ${say(data.reasons[row[REASONS][check]])}`;
    if (state.test && !state.test(place, check)) link.classList.add("dim");
    return link;
  }

  // ---- counts by verdict and evidence, which are never added up ----------------------------------------------
  const KINDS = Object.keys(data.marks).flatMap((mark) => [...Object.keys(data.evidence), "-"].map((proof) => mark + proof));
  const RANK = new Map(KINDS.map((kind, rank) => [kind, rank]));
  function tally(places, from = 0, to = data.checks.length) {
    const counts = new Map();
    const add = (codes, count) => counts.set(codes, (counts.get(codes) || 0) + count);
    if (!state.test) {
      // Many rows have the same verdicts.
      const alike = new Map();
      for (const place of places) { const verdicts = data.rows[place][VERDICTS]; alike.set(verdicts, (alike.get(verdicts) || 0) + 1); }
      for (const [verdicts, rows] of alike) for (let at = from * 2; at < to * 2; at += 2) if (verdicts[at] !== ABSENT) add(verdicts.slice(at, at + 2), rows);
      return counts;
    }
    for (const place of places) for (let check = from; check < to; check++) {
      const codes = codesOf(place, check);
      if (codes[0] !== ABSENT && state.test(place, check)) add(codes, 1);
    }
    return counts;
  }
  const inOrder = (counts) => [...counts].sort((a, b) => RANK.get(a[0]) - RANK.get(b[0]));
  function countNodes(counts) {
    const found = inOrder(counts);
    return found.map(([kind, count]) => {
      const [[mark, , word], proof] = [data.marks[kind[0]], data.evidence[kind[1]]];
      const node = make("span", { class: `n m-${mark}` }, glyph(mark), count.toLocaleString("en"));
      if (found.length === 1) node.append(make("span", { class: "w" }, say(word)));
      if (proof) node.append(make("span", { class: `tag e-${proof[0]}` }, say(proof[2])));
      return node;
    });
  }
  // For a node whose words are in the link around it.
  const silent = (node) => { node.setAttribute("aria-hidden", "true"); return node; };
  const countWords = (counts) => inOrder(counts).map(([kind, count]) => `${count} ${say(data.marks[kind[0]][1])}${kind[1] === "-" ? "" : ` ${say(data.evidence[kind[1]][1])}`}`).join(", ");
  // Counts to look at, and in words for those who listen.
  const countParts = (counts, head = "") => [make("span", { class: "hidden" }, head + countWords(counts)), ...countNodes(counts).map(silent)];
  const MARKS = Object.keys(data.marks);
  function folded(place, tier) {
    const row = data.rows[place];
    const verdicts = row[VERDICTS].slice(tier.from * 2, tier.to * 2);
    if (!/[^-]/.test(verdicts)) return nothing();
    const changed = Boolean(row[CHANGES]) && /[^-]/.test(row[CHANGES].slice(tier.from, tier.to));
    let counts = tally([place], tier.from, tier.to);
    const dim = !counts.size;
    const { test } = state;
    if (dim) { state.test = null; counts = tally([place], tier.from, tier.to); state.test = test; }
    const key = `${tier.name} ${[...counts].join()} ${changed}`;
    const link = stamped(key, () => make("a", { class: `tile fold${changed ? " changed" : ""}`, tabindex: "-1" }, ...countParts(counts, `${say(tier.name)}: `)));
    let first = -1;
    for (let check = tier.from; check < tier.to; check++) {
      const code = verdicts[(check - tier.from) * 2];
      if (code === ABSENT || (!dim && test && !test(place, check))) continue;
      if (first < 0 || MARKS.indexOf(code) < MARKS.indexOf(verdicts[(first - tier.from) * 2])) first = check;
    }
    link.href = `${page(row)}#${data.checks[first][2]}`;
    if (dim) link.classList.add("dim");
    return link;
  }

  // ---- columns and rows of cells × checks --------------------------------------------------------------------
  // A stop is a column that the keyboard reaches: the name, a folded tier or a check.
  const stopsOf = () => [{}, ...tiers.flatMap((tier) => state.open.has(tier.name) ? Array.from({ length: tier.to - tier.from }, (_, i) => ({ check: tier.from + i })) : [{ tier }])];
  function cellHead() {
    const deep = state.open.size ? "2" : null;
    const sorter = (name, said, kind) => {
      const turned = state.sort === name ? "descending" : state.sort === `-${name}` ? "ascending" : null;
      return make("th", { role: "columnheader", scope: "col", class: kind, rowspan: deep, "aria-sort": turned },
        make("button", { type: "button", class: "sort", "data-sort": name, title: say("sort") }, said, make("span", { "aria-hidden": "true" }, { descending: " ↓", ascending: " ↑" }[turned] || "")));
    };
    const top = make("tr", { role: "row" }, sorter("cell", say("cell"), "cellname"), ...state.columns.map((axis) => sorter(data.axes[axis], data.axes[axis], "axis")));
    const names = make("tr", { role: "row", class: "names" });
    for (const tier of tiers) {
      const open = state.open.has(tier.name);
      const button = make("button", { type: "button", class: "unfold", "data-tier": tier.name, "aria-expanded": String(open) }, say(tier.name), " ", make("span", { class: "count" }, String(tier.to - tier.from)));
      top.append(make("th", { role: "columnheader", scope: open ? "colgroup" : "col", class: "tier first", colspan: open ? String(tier.to - tier.from) : null, rowspan: open ? null : deep }, button));
      for (let check = tier.from; open && check < tier.to; check++) names.append(make("th", { role: "columnheader", scope: "col", class: check === tier.from ? "check first" : "check", title: say(data.checks[check][3]) }, data.checks[check][0]));
    }
    return deep ? [top, names] : [top];
  }
  function cellRow(item, index) {
    if (item.group !== undefined) return groupRow(item, index);
    const row = data.rows[item];
    const head = make("a", { href: page(row), tabindex: "-1", translate: "no" }, make("b", {}, row[TITLE] || row[ID]), make("small", {}, row[ID]));
    const node = make("tr", { role: "row", "aria-rowindex": index + 2, "data-index": index }, make("th", { role: "rowheader", scope: "row", class: "cellname" }, head));
    for (const axis of state.columns) {
      const number = row[AXES][axis];
      node.append(make("td", { role: "gridcell", class: "axis", translate: "no", title: data.short[number] ? data.values[number] : null }, value(number)));
    }
    for (const tier of tiers) {
      if (!state.open.has(tier.name)) { node.append(make("td", { role: "gridcell", class: "first", "data-check": tier.name }, folded(item, tier))); continue; }
      for (let check = tier.from; check < tier.to; check++) node.append(make("td", { role: "gridcell", class: check === tier.from ? "first" : null, "data-check": data.checks[check][0] }, tile(item, check)));
    }
    return node;
  }
  const width = () => 1 + state.columns.length + stopsOf().length - 1;
  function groupRow(item, index) {
    const head = make("th", { role: "rowheader", scope: "rowgroup", colspan: String(width()) },
      make("b", {}, `${item.axis} ${item.group}`), make("span", { class: "count" }, say(`${item.places.length.toLocaleString("en")} ${item.places.length === 1 ? "cell" : "cells"}`)), make("span", { class: "tally" }, ...countNodes(tally(item.places))));
    return make("tr", { role: "row", class: "group", "aria-rowindex": index + 2, "data-index": index }, head);
  }
  const rankings = new Map();
  function ranking(axis) {
    if (!rankings.has(axis)) {
      const used = [...new Set(data.rows.map((row) => row[AXES][axis]))];
      // Newest first; a commit is neither before nor after any version.
      const unordered = (number) => !/^v?[0-9]{1,4}(\.|$)/.test(data.values[number] ?? "");
      used.sort((a, b) => unordered(a) - unordered(b) || order(data.values[b] ?? "", data.values[a] ?? ""));
      rankings.set(axis, new Map(used.map((number, rank) => [number, rank])));
    }
    return rankings.get(axis);
  }
  let byName = null;
  function nameRanks() {
    if (byName) return byName;
    const names = data.rows.map((row) => row[TITLE] || row[ID]);
    const sorted = [...names.keys()].sort((a, b) => (names[a] < names[b] ? -1 : names[a] > names[b] ? 1 : 0));
    byName = new Map(sorted.map((place, at) => [place, at]));
    return byName;
  }
  function cellItems() {
    const rank = (name) => {
      const axis = data.axes.indexOf(name);
      if (axis >= 0) { const ranks = ranking(axis); return (place) => ranks.get(data.rows[place][AXES][axis]); }
      return (place) => nameRanks().get(place);
    };
    let places = state.shown;
    if (state.sort) {
      const [key, sign] = [rank(state.sort.replace(/^-/, "")), state.sort.startsWith("-") ? -1 : 1];
      places = [...places].sort((a, b) => sign * (key(a) - key(b)) || a - b);
    }
    if (!state.group) return places;
    const axis = data.axes.indexOf(state.group);
    const groups = new Map();
    for (const place of places) {
      const number = data.rows[place][AXES][axis];
      (groups.get(number) || groups.set(number, []).get(number)).push(place);
    }
    const ranks = ranking(axis);
    return [...groups].sort((a, b) => ranks.get(a[0]) - ranks.get(b[0])).flatMap(([number, inside]) => [{ axis: state.group, group: value(number), places: inside }, ...inside]);
  }

  // ---- checks × runs -----------------------------------------------------------------------------------------
  let past = null;
  function withRuns(done) {
    if (window.NPU_MATRIX_RUNS) { past = window.NPU_MATRIX_RUNS; return done(); }
    const script = make("script", { src: "data/runs.js" });
    script.addEventListener("load", () => withRuns(done));
    document.head.append(script);
  }
  let everRan = null;
  const lettersOf = (item) => past.verdicts[past.rows[Math.floor(item / data.checks.length)][2][item % data.checks.length]] || "";
  function runItems() {
    const found = [];
    everRan ??= past.verdicts.map((letters) => /[^-nbx]/.test(letters));
    for (const place of state.shown) {
      const histories = past.rows[place][2];
      for (let check = 0; check < data.checks.length; check++) {
        if (histories[check] >= 0 && everRan[histories[check]] && (!state.test || state.test(place, check))) found.push(place * data.checks.length + check);
      }
    }
    return found;
  }
  function runHead() {
    const columns = past.runs.map(([run, when, commit]) => make("th", { role: "columnheader", scope: "col", class: "run", title: `${when}: ${run}${commit ? ` ${commit.slice(0, 12)}` : ""}` }, when.slice(5, 10), make("small", {}, when.slice(11, 16))));
    return [make("tr", { role: "row" }, make("th", { role: "columnheader", scope: "col", class: "cellname" }, say("check")), ...columns.reverse())];
  }
  function runRow(item, index) {
    const row = data.rows[Math.floor(item / data.checks.length)];
    const check = data.checks[item % data.checks.length];
    const head = make("a", { href: `${page(row)}#${check[2]}`, tabindex: "-1", translate: "no" }, make("b", {}, check[0]), make("small", {}, row[TITLE] || row[ID]));
    const cells = [...lettersOf(item)].map((letter, run) => {
      const [mark, word, character] = past.marks[letter] || [];
      // Few nodes: 50 runs of the rows in sight are thousands of cells, and drawings in them took most of the time.
      const cell = stamped(`run ${letter}`, () => (mark
        ? make("td", { role: "gridcell", class: `run m-${mark}`, tabindex: "-1", "aria-label": say(word) }, character)
        : make("td", { role: "gridcell", class: "run void", tabindex: "-1" }, "·")));
      if (mark) cell.title = `${past.runs[run][1]}: ${say(word)}`;
      return cell;
    });
    return make("tr", { role: "row", "aria-rowindex": index + 2, "data-index": index }, make("th", { role: "rowheader", scope: "row", class: "cellname" }, head), ...cells.reverse());
  }

  // ---- drawing -----------------------------------------------------------------------------------------------
  // A view of rows: its items, its head, the node of an item, how many columns it has, and which nodes the keyboard reaches.
  const tiles = (node) => [...node.querySelectorAll("td[data-check]")].map((cell) => cell.firstElementChild);
  const VIEWS = {
    "": { items: cellItems, head: cellHead, row: cellRow, columns: width, stops: tiles, height: 62, none: "No cell matches. Esc clears the filter." },
    runs: { items: runItems, head: runHead, row: runRow, columns: () => 1 + past.runs.length, stops: (node) => [...node.querySelectorAll("td.run")], height: 37, none: "No check of these cells ever ran." },
  };
  const shape = () => VIEWS[state.view] || VIEWS[""];
  const stops = (node) => [node.querySelector("th a"), ...shape().stops(node)];
  function padding(rows) {
    const cell = make("td", { colspan: String(shape().columns()), role: "presentation" });
    cell.style.height = `${rows * shape().height}px`;
    return make("tr", { class: "pad", role: "presentation", "aria-hidden": "true" }, cell);
  }
  // Draws the rows in sight; all of them while there are few, so that the browser's own search finds everything.
  let drawn = new Map();
  let rest = 0;
  function draw(force, beyond = force ? 1 : OVERSCAN) {
    if (state.view.includes(",") || (state.view === "runs" && !past)) return;
    const count = state.items.length;
    const body = $("rows");
    let [from, to] = [0, count];
    if (count > VIRTUAL_FROM) {
      const box = $("grid-box").getBoundingClientRect();
      const [top, bottom] = [Math.max(0, box.top), Math.min(innerHeight, box.bottom)];
      const above = top - body.getBoundingClientRect().top;
      from = Math.min(Math.max(0, Math.floor(above / shape().height) - beyond), Math.max(0, count - OVERSCAN));
      to = Math.min(count, from + Math.ceil(Math.max(bottom - top, 300) / shape().height) + 2 * beyond);
    }
    if (!force && from >= state.from && to <= state.to) return;
    clearTimeout(rest);
    if (force && count > VIRTUAL_FROM) rest = setTimeout(() => draw(false), LATER_MS);
    $("grid").classList.toggle("virtual", count > VIRTUAL_FROM);
    const focused = body.contains(document.activeElement);
    [state.from, state.to] = [from, to];
    const known = force ? new Map() : drawn;
    drawn = new Map();
    for (let index = from; index < to; index++) drawn.set(index, known.get(index) || shape().row(state.items[index], index));
    const rows = [...drawn.values()];
    if (from > 0) rows.unshift(padding(from));
    if (to < count) rows.push(padding(count - to));
    if (!count) rows.push(make("tr", { role: "row" }, make("td", { role: "gridcell", class: "empty", colspan: String(shape().columns()) }, say(shape().none))));
    body.replaceChildren(...rows);
    if (count > VIRTUAL_FROM) {
      const sample = body.querySelector("tr[data-index]");
      if (sample && Math.abs(sample.offsetHeight - shape().height) > 1) { shape().height = sample.offsetHeight; return draw(true, beyond); }
    }
    const stop = stopAt(...state.at) || body.querySelector("a");
    if (stop) { stop.tabIndex = 0; if (focused) stop.focus({ preventScroll: true }); }
  }
  function stopAt(index, column) {
    const node = $("rows").querySelector(`tr[data-index="${index}"]`);
    return node && stops(node)[column];
  }
  function go(index, column, step = 1) {
    if (!state.items.length) return;
    index = Math.min(Math.max(0, index), state.items.length - 1);
    // A group is a heading; the keyboard passes over it.
    while (state.items[index]?.group !== undefined && index > 0 && index < state.items.length - 1) index += step < 0 ? -1 : 1;
    if (state.items[index]?.group !== undefined) index = 1;
    column = Math.min(Math.max(0, column), (state.view ? shape().columns() : stopsOf().length) - 1);
    for (const old of $("rows").querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
    state.at = [index, column];
    if (index < state.from || index >= state.to) {
      const box = $("grid-box");
      const down = index * shape().height;
      if (box.scrollHeight > box.clientHeight + 1) box.scrollTop = down - box.clientHeight / 2;
      else window.scrollTo(0, $("rows").getBoundingClientRect().top + scrollY + down - innerHeight / 2);
      draw(true, OVERSCAN);
    }
    const stop = stopAt(index, column);
    if (!stop) return;
    stop.tabIndex = 0;
    stop.focus({ preventScroll: true });
    stop.scrollIntoView({ block: "nearest", inline: "nearest" });
    save();
  }
  // Everything anew: after a filter, and after a change of the view or the columns.
  function show() {
    const axes = state.view.split(",");
    const pivoted = axes.length === 2;
    $("view").value = pivoted ? "axes" : state.view;
    $("axes").hidden = !pivoted;
    $("grid-box").hidden = pivoted;
    $("pivot-box").hidden = !pivoted;
    for (const control of document.querySelectorAll(".of-grid")) control.hidden = Boolean(state.view);
    if (pivoted) { [$("down").value, $("across").value] = axes; return pivot(); }
    if (state.view === "runs" && !past) return withRuns(show);
    state.items = shape().items();
    $("head").replaceChildren(...shape().head());
    $("grid").classList.toggle("runs", state.view === "runs");
    $("grid").setAttribute("aria-rowcount", String(state.items.length + $("head").rows.length));
    draw(true);
  }
  function status() {
    const [cells, all, checks] = [state.shown.length, data.rows.length, state.matches].map((n) => n.toLocaleString("en"));
    $("q-status").textContent = say(`${state.test ? `${cells} of ${all}` : cells} ${data.rows.length === 1 ? "cell" : "cells"}, ${checks} ${state.matches === 1 ? "check" : "checks"}`);
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
    $("grid-box").scrollTop = 0;
    const top = $("grid-box").getBoundingClientRect().top - 60;
    if (top < 0) scrollBy(0, top);
    state.matches = matches;
    status();
    for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(chip.dataset.query === query));
    show();
  }

  // ---- axis × axis -------------------------------------------------------------------------------------------
  function pivot() {
    const [down, across] = [data.axes.indexOf($("down").value), data.axes.indexOf($("across").value)];
    const groups = new Map();
    for (const place of state.shown) {
      const axes = data.rows[place][AXES];
      const key = `${axes[down]},${axes[across]}`;
      (groups.get(key) || groups.set(key, []).get(key)).push(place);
    }
    const used = (axis) => { const found = new Set(state.shown.map((place) => data.rows[place][AXES][axis])); return [...ranking(axis).keys()].filter((number) => found.has(number)); };
    const whole = (number) => data.values[number] ?? "—";
    const [left, top] = [used(down), used(across)];
    const body = left.map((y) => make("tr", {}, make("th", { scope: "row", title: whole(y) }, value(y)), ...top.map((x) => {
      const places = groups.get(`${y},${x}`);
      if (!places) return make("td", {}, make("span", { class: "void", title: say("no cell") }, "·"));
      const counts = tally(places);
      const button = make("button", { type: "button", "data-pivot": `${data.axes[down]}="${whole(y)}" & ${data.axes[across]}="${whole(x)}"` }, ...countParts(counts));
      return make("td", {}, button);
    })));
    const corner = make("th", { scope: "col" }, `${data.axes[down]} \\ ${data.axes[across]}`);
    $("pivot-box").replaceChildren(make("table", { class: "pivot", translate: "no" }, make("thead", {}, make("tr", {}, corner, ...top.map((x) => make("th", { scope: "col", title: whole(x) }, value(x))))), make("tbody", {}, ...body)));
  }

  // ---- links that hold the state -----------------------------------------------------------------------------
  const nameOf = (stop) => stop?.check !== undefined ? data.checks[stop.check][0] : stop?.tier ? `+${stop.tier.name}` : "";
  function save() {
    const parts = new URLSearchParams();
    const put = (name, text) => { if (text) parts.set(name, text); };
    put("q", state.query);
    put("view", state.view);
    put("open", state.open.size === tiers.length ? "all" : [...state.open].join());
    if (state.columns.join() !== data.shown.join()) parts.set("columns", state.columns.map((axis) => data.axes[axis]).join());
    put("sort", state.sort);
    put("group", state.group);
    const row = !state.view && data.rows[state.items[state.at[0]]];
    const name = nameOf(stopsOf()[state.at[1]]);
    if (row && (state.at[0] || state.at[1])) parts.set("at", name ? `${row[ID]}/${name}` : row[ID]);
    const hash = parts.size ? `#${parts}` : "";
    memory.set(() => sessionStorage, "npu-matrix-grid", hash);
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname);
  }
  function restore() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const get = (name) => parts.get(name) || "";
    const axes = (text) => text.split(",").map((name) => data.axes.indexOf(name)).filter((axis) => axis >= 0);
    const pair = axes(get("view"));
    state.view = pair.length === 2 ? pair.map((axis) => data.axes[axis]).join() : get("view") === "runs" ? "runs" : "";
    state.open = new Set(tiers.map((tier) => tier.name).filter((name) => get("open") === "all" || get("open").split(",").includes(name)));
    state.columns = parts.has("columns") ? axes(get("columns")) : [...data.shown];
    state.sort = ["cell", ...data.axes].includes(get("sort").replace(/^-/, "")) ? get("sort") : "";
    state.group = data.axes.includes(get("group")) ? get("group") : "";
    $("group").value = state.group;
    for (const box of document.querySelectorAll("#columns input")) box.checked = state.columns.includes(data.axes.indexOf(box.value));
    $("q").value = get("q");
    filter($("q").value);
    const at = get("at");
    const index = at ? state.items.findIndex((place) => at === data.rows[place]?.[ID] || at.startsWith(`${data.rows[place]?.[ID]}/`)) : -1;
    if (state.view || index < 0) return;
    const name = at.slice(data.rows[state.items[index]][ID].length + 1);
    go(index, name ? Math.max(0, stopsOf().findIndex((stop) => nameOf(stop) === name)) : 0);
  }

  // ---- keys and controls -------------------------------------------------------------------------------------
  function key(event, typing) {
    if (event.key === "/" && !typing) $("q").focus();
    else if (event.key === "Escape" && $("columns").open) { $("columns").open = false; $("columns").firstElementChild.focus(); }
    else if (event.key === "Escape" && (typing || state.query)) { $("q").value = ""; filter(""); save(); }
    else if (event.key === "ArrowDown" && document.activeElement === $("q")) go(0, 0);
    else if ($("rows").contains(document.activeElement)) {
      const [index, column] = state.at;
      if (event.key in MOVES) go(index + MOVES[event.key][0], column + MOVES[event.key][1], MOVES[event.key][0]);
      else if (event.key === "Home") go(index, 0);
      else if (event.key === "End") go(index, Infinity);
      else if (event.key === "Enter" && document.activeElement.matches("td")) document.activeElement.parentElement.querySelector("a").click();
      else return false;
    } else return false;
    return true;
  }
  function clicked(event) {
    const chip = event.target.closest(".chip, [data-pivot], [data-sort], [data-tier]");
    if (!chip) return;
    const { pivot: place, query, sort, tier } = chip.dataset;
    if (sort) state.sort = state.sort === sort ? `-${sort}` : state.sort === `-${sort}` ? "" : sort;
    if (tier && !state.open.delete(tier)) state.open.add(tier);
    if (sort || tier) show();
    else {
      const wanted = place || query;
      $("q").value = state.query === wanted ? "" : place && state.query ? `(${state.query}) & ${wanted}` : wanted;
      if (place) state.view = "";
      filter($("q").value);
    }
    save();
    // The head was made anew; the focus stays on its button. A group of cells leads to these cells.
    if (place) go(0, 0);
    if (sort || tier) $("head").querySelector(sort ? `[data-sort="${CSS.escape(sort)}"]` : `[data-tier="${tier}"]`)?.focus();
  }
  function controls() {
    for (const id of ["down", "across", "group"]) $(id).append(...data.axes.map((axis) => make("option", { value: axis, translate: "no" }, axis)));
    if (data.axes.length < 2) $("view").querySelector('[value="axes"]').remove();
    $("columns").lastElementChild.append(...data.axes.map((axis) => make("label", { translate: "no" }, make("input", { type: "checkbox", value: axis }), axis)));
    const changed = (id, change) => $(id).addEventListener("change", () => { change(); show(); save(); });
    const pair = () => { state.view = `${$("down").value},${$("across").value}`; };
    changed("down", pair);
    changed("across", pair);
    changed("group", () => { state.group = $("group").value; state.at = [0, 0]; });
    changed("columns", () => { state.columns = [...document.querySelectorAll("#columns input:checked")].map((box) => data.axes.indexOf(box.value)); });
    $("view").addEventListener("change", () => {
      const wanted = $("view").value;
      if (wanted.includes(".html")) { location.href = wanted; return; }
      const [down, across] = [...data.shown, ...data.axes.keys()].filter((axis, i, all) => all.indexOf(axis) === i);
      state.view = wanted === "axes" ? `${data.axes[down]},${data.axes[across]}` : wanted;
      state.at = [0, 0];
      show();
      save();
    });
  }
  function start() {
    let waiting = 0;
    $("q").addEventListener("input", () => {
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(() => { filter($("q").value); save(); });
    });
    controls();
    document.addEventListener("click", clicked);
    $("rows").addEventListener("focusin", (event) => {
      const node = event.target.closest("tr[data-index]");
      if (node) state.at = [Number(node.dataset.index), Math.max(0, stops(node).indexOf(event.target))];
    });
    addEventListener("scroll", () => draw(false), { passive: true, capture: true });
    addEventListener("resize", () => draw(false));
    // The address of a place on this page, such as that of its content, is no state of the grid.
    addEventListener("hashchange", () => { if (!$(location.hash.slice(1))) { restore(); $("grid-title").scrollIntoView(); } });
    restore();
    if (/[#&](q|view|open|columns|sort|group)=/.test(location.hash) && !location.hash.includes("at=")) $("grid-title").scrollIntoView();
    // The first search for a word reads every row; do that before somebody types.
    let place = 0;
    const read = (idle) => {
      while (place < data.rows.length && idle.timeRemaining() > 2) haystack(place++);
      if (place < data.rows.length) requestIdleCallback(read);
    };
    if (window.requestIdleCallback) requestIdleCallback(read);
  }
  // In another language: the tiles are made anew, and the rows in sight.
  function redraw() {
    if (!document.documentElement.classList.contains("drawn") && document.documentElement.lang === "en") return;
    document.documentElement.classList.add("drawn");
    stamps.clear();
    status();
    show();
  }
  return { start, key, redraw };
};
