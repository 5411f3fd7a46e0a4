"use strict";
// The page of changes for any two remembered runs, or commits: #since=RUN_OR_COMMIT&now=RUN_OR_COMMIT; or for the
// last verdicts of all runs until a day and those of today: #since=YYYY-MM-DD; or for a run and all runs before it:
// #now=RUN.
// Verdicts only: which inputs differ is worked out by `npu-matrix report --since`.
(() => {
  const data = window.NPU_MATRIX_RUNS;
  const $ = (id) => document.getElementById(id);
  if (!data || !$("then")) return;
  const MOST = 200;
  const ABSENT = "-";
  const [FAILED, PASSED, ANSWERED] = [["f", "i", "k"], ["p", "u"], ["f", "i", "k", "p", "u", "x"]];
  // As in changes.py, in the same order.
  const TURNS = ["newly broken", "newly not run", "still broken", "fixed", "newly proved", "newly planned", "no longer planned"];

  function turn(before, after) {
    if (before === ABSENT || after === ABSENT) return before === after ? "" : before === ABSENT ? "newly planned" : "no longer planned";
    const [bad, wasBad] = [FAILED.includes(after), FAILED.includes(before)];
    if (bad) return wasBad ? "still broken" : "newly broken";
    if (PASSED.includes(after)) return wasBad ? "fixed" : PASSED.includes(before) ? "" : "newly proved";
    return wasBad || PASSED.includes(before) ? "newly not run" : "";
  }
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const word = (code) => (code === ABSENT ? "·" : data.marks[code][1]);
  const tile = (code) => make("span", { class: code === ABSENT ? "void" : `tile e-none m-${data.marks[code][0]}` }, word(code));
  const label = ([id, when, commit]) => `${when}${commit ? `, commit ${commit.slice(0, 9)}${commit.endsWith("+") ? "+" : ""}` : ""}, run ${id}`;
  // A run by its id or the beginning of it, or the last run of a commit.
  function find(wanted) {
    if (!wanted) return -1;
    const hits = data.runs.map(([id, , commit], place) => (id.startsWith(wanted) || (wanted.length > 5 && commit.startsWith(wanted)) ? place : -1));
    return Math.max(...hits);
  }

  // The last verdict of any run until this one: runs of several machines plan different parts of the matrix.
  function last_until(verdicts, place) {
    for (let at = place; at >= 0; at -= 1) if (ANSWERED.includes(verdicts[at])) return verdicts[at];
    return place < 0 ? ABSENT : verdicts[place];
  }
  const run_on = (day) => data.runs.reduce((found, [, when], place) => (when.slice(0, 10) <= day ? place : found), -1);

  function compare(then, now, by_day) {
    const groups = new Map(TURNS.map((name) => [name, []]));
    data.rows.forEach(([title, page, checks]) => checks.forEach((which, check) => {
      if (which < 0) return;
      const verdicts = data.verdicts[which];
      const [before, after] = by_day ? [last_until(verdicts, then), last_until(verdicts, now)] : [verdicts[then], verdicts[now]];
      const name = turn(before, after);
      if (name) groups.get(name).push([title, page, check, before, after]);
    }));
    return groups;
  }
  function table(name, found) {
    const rows = found.slice(0, MOST).map(([title, page, check, before, after]) => make("tr", {},
      make("th", { scope: "row" }, make("a", { href: `cells/${page}.html#${data.checks[check][1]}`, translate: "no" }, data.checks[check][0])),
      make("td", { class: "who", translate: "no" }, title), make("td", {}, tile(before)), make("td", {}, tile(after))));
    const head = ["check", "cell", "then", "now"].map((text) => make("th", { scope: "col" }, text));
    const box = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": name },
      make("table", { class: "data" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
    const parts = [make("h2", {}, `${name} `, make("span", { class: "count" }, String(found.length))), box];
    if (found.length > MOST) parts.push(make("p", { class: "muted" }, `${found.length - MOST} more.`));
    return make("section", { class: "turn", "data-turn": name }, ...parts);
  }

  const headline = $("headline").textContent;
  const last = data.runs.length - 1;
  const usual = [find($("then").dataset.run), last];
  function show_day(day, save) {
    $("day").value = day;
    show(run_on(day), last, save, day);
  }
  function show(then, now, save, day = "", of_all_runs = Boolean(day)) {
    const ordinary = !of_all_runs && then === usual[0] && now === usual[1];
    if (!day) $("day").value = "";
    $("then").value = String(then);
    $("now").value = String(now);
    $("default-changes").hidden = !ordinary;
    $("default-pair").hidden = ordinary;
    if ($("pair")) $("pair").hidden = !ordinary;
    const found = ordinary ? [] : [...compare(then, now, of_all_runs)].filter(([, changes]) => changes.length);
    $("compared").replaceChildren(...found.map(([name, changes]) => table(name, changes)));
    const expected = (changes) => changes.filter(([, , , , after]) => after === "k").length;
    const counts = found.map(([name, changes]) => `${changes.length} ${name}${expected(changes) ? ` (${expected(changes)} expected)` : ""}`).join(", ");
    $("headline").textContent = ordinary ? headline : `${counts || "Nothing changed"} ${day ? `since ${day}, by the last verdicts of all runs` : `from ${label(data.runs[then])} to ${label(data.runs[now])}`}.`;
    if (save) history.replaceState(null, "", ordinary ? location.pathname : day ? `#since=${day}` : `#since=${encodeURIComponent(data.runs[then][0])}&now=${encodeURIComponent(data.runs[now][0])}`);
  }
  function restore() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (/^\d{4}-\d\d-\d\d$/.test(parts.get("since") || "")) return show_day(parts.get("since"), false);
    const [then, now] = [find(parts.get("since")), find(parts.get("now"))];
    if (then < 0 && now > 0) return show(now - 1, now, false, "", true);
    // A run that is too old to be remembered was before the oldest one that is.
    show(then >= 0 ? then : parts.get("since") ? 0 : Math.max(usual[0], 0), now < 0 ? last : now, false);
  }

  for (const id of ["then", "now"]) {
    $(id).append(...data.runs.map((run, place) => make("option", { value: String(place) }, label(run))).reverse());
    $(id).addEventListener("change", () => show(Number($("then").value), Number($("now").value), true));
  }
  $("day").addEventListener("input", () => ($("day").value ? show_day($("day").value, true) : show(Math.max(usual[0], 0), last, true)));
  $("default-pair").addEventListener("click", () => show(Math.max(usual[0], 0), last, true));
  addEventListener("hashchange", restore);
  restore();
})();
